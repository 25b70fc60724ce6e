"""Damage of every kind is seen: a file gives what was written, or nothing."""

import random
import struct
from hashlib import sha256
from pathlib import Path

import pytest

from engine.cache import snapshot_file as header
from engine.cache.snapshot_file import (
    DIGEST_AT,
    PRELUDE,
    head_of,
    read_facts,
    read_head,
    read_prelude,
    read_snapshot,
    write_snapshot,
)
from engine.errors import StateError
from tests.engine.cache.making import NAMESPACE, payload_of, state_of

STATE = state_of([5, 6, 7, 8, 9], 2)
HEAD = head_of(NAMESPACE, STATE, payload_of(STATE))
N_DESCRIPTION = len(HEAD) - PRELUDE.size - len(STATE.packed)
DESCRIPTION = HEAD[PRELUDE.size : PRELUDE.size + N_DESCRIPTION]
WHOLE = HEAD + payload_of(STATE)
BOUNDARIES = (
    0,
    8,
    12,
    DIGEST_AT,
    PRELUDE.size,
    PRELUDE.size + N_DESCRIPTION,
    len(HEAD),
    len(WHOLE),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.kv"


def resealed(data: bytearray) -> bytes:
    """Give a file whose head was changed, with the checksum that belongs to it."""
    del data[len(HEAD) :]
    digest = sha256(bytes(data[:DIGEST_AT]) + bytes(data[PRELUDE.size :])).digest()
    return bytes(data[:DIGEST_AT]) + digest + bytes(data[PRELUDE.size :]) + payload_of(STATE)


def read_whole_head(data: bytes) -> None:
    prelude = read_prelude(data[: PRELUDE.size], len(data))
    read_head(prelude, data[: PRELUDE.size], data[PRELUDE.size : prelude.head_bytes])


def described(text: bytes) -> bytes:
    """Give a file with another description, all sizes and checksums right."""
    sizes = bytearray(HEAD[:DIGEST_AT])
    sizes[12:16] = struct.pack("<I", len(text))
    rest = text + HEAD[PRELUDE.size + N_DESCRIPTION :]
    digest = sha256(bytes(sizes) + rest).digest()
    return bytes(sizes) + digest + rest + payload_of(STATE)


def test_a_file_says_all_of_a_state(path: Path) -> None:
    write_snapshot(path, NAMESPACE, STATE, payload_of(STATE))
    facts, payload = read_snapshot(path)
    assert payload == payload_of(STATE)
    assert facts.state == STATE
    assert facts.header.namespace == NAMESPACE
    assert facts.nbytes == path.stat().st_size
    assert read_facts(path) == facts


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_a_file_that_was_cut_off_is_refused(path: Path, boundary: int) -> None:
    for length in (boundary - 1, boundary, boundary + 1):
        if 0 <= length < len(WHOLE):
            path.write_bytes(WHOLE[:length])
            with pytest.raises(StateError):
                read_snapshot(path)
            with pytest.raises(StateError):
                read_facts(path)


def test_a_file_with_more_behind_it_is_refused(path: Path) -> None:
    path.write_bytes(WHOLE + b"\0")
    n = len(WHOLE)
    with pytest.raises(StateError, match=f"it has {n + 1:,} bytes and should have {n:,}"):
        read_snapshot(path)


def test_every_flipped_bit_of_the_head_is_seen() -> None:
    for at in range(len(HEAD)):
        for bit in (0x01, 0x10, 0x80):
            data = bytearray(WHOLE)
            data[at] ^= bit
            with pytest.raises(StateError):
                read_whole_head(bytes(data))


def test_flipped_bits_of_the_payload_are_seen(path: Path) -> None:
    write_snapshot(path, NAMESPACE, STATE, payload_of(STATE))
    whole = path.read_bytes()
    n_head = read_facts(path).header.prelude.head_bytes
    choice = random.Random(7)
    for at in (n_head, len(whole) - 1, *(choice.randrange(n_head, len(whole)) for _ in range(60))):
        data = bytearray(whole)
        data[at] ^= 1 << choice.randrange(8)
        path.write_bytes(data)
        with pytest.raises(StateError, match="checksum differs"):
            read_snapshot(path)


def test_a_payload_of_another_file_is_seen(path: Path) -> None:
    other = state_of([5, 6, 7, 8, 10], 2)
    path.write_bytes(HEAD + payload_of(other))
    with pytest.raises(StateError, match="checksum differs"):
        read_snapshot(path)


@pytest.mark.parametrize(
    ("at", "value"), [(12, 2**32 - 1), (16, 2**32 - 1), (20, 2**64 - 1), (12, 1 << 20)]
)
def test_sizes_that_cannot_be_take_no_memory(path: Path, at: int, value: int) -> None:
    data = bytearray(WHOLE)
    form = "<Q" if at == 20 else "<I"
    struct.pack_into(form, data, at, value)
    path.write_bytes(resealed(data))
    with pytest.raises(StateError, match=r"sizes cannot be|should have"):
        read_snapshot(path)


@pytest.mark.parametrize(
    ("n_description", "n_tokens"),
    [(header.MAX_DESCRIPTION_BYTES + 1, 1), (1, header.MAX_TOKENS + 1)],
)
def test_a_head_larger_than_any_is_not_read_whatever_the_file_has(
    n_description: int, n_tokens: int
) -> None:
    data = bytearray(HEAD[: PRELUDE.size])
    struct.pack_into("<IIQ", data, 12, n_description, n_tokens, 0)
    with pytest.raises(StateError, match="sizes cannot be"):
        read_prelude(bytes(data), PRELUDE.size + n_description + 4 * n_tokens)


def test_another_version_is_refused_with_its_number(path: Path) -> None:
    data = bytearray(WHOLE)
    struct.pack_into("<I", data, 8, header.VERSION + 1)
    path.write_bytes(resealed(data))
    with pytest.raises(StateError, match=f"version {header.VERSION + 1}"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 100_000,
        DESCRIPTION.replace(b'"start": 2', b'"start": 3'),
        DESCRIPTION.replace(b'"start": 2', b'"start": true'),
        DESCRIPTION.replace(b'"n_uses": 0', b'"n_uses": -1'),
        DESCRIPTION.replace(b'"n_uses": 0', b'"n_uses": 0.5'),
        DESCRIPTION.replace(b": 1.0", b": NaN"),
        DESCRIPTION.replace(b'"K type", ', b""),
    ],
)
def test_a_description_that_says_nonsense_is_refused(path: Path, text: bytes) -> None:
    path.write_bytes(described(text))
    with pytest.raises(StateError):
        read_snapshot(path)


def test_the_same_description_passes_the_way_these_are_made(path: Path) -> None:
    path.write_bytes(described(DESCRIPTION))
    assert read_snapshot(path)[1] == payload_of(STATE)


def test_a_state_with_more_owners_than_a_file_may_name_is_not_written(path: Path) -> None:
    crowd = state_of([1, 2], owners=tuple(f"chat:{n}" for n in range(100_000)))
    with pytest.raises(StateError, match="too large"):
        write_snapshot(path, NAMESPACE, crowd, payload_of(crowd))
    assert not path.exists()
