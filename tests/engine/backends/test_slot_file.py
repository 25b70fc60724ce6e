"""llama-server's slot files, held against llama.cpp's own reader and writer on made models."""

import ctypes
import struct
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import pytest

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.slot_file import (
    PACKED,
    SLOT_HEADER,
    SLOT_MAGIC,
    SLOT_VERSION,
    read_slot_file,
    whole_state,
    write_slot_file,
)
from engine.errors import StateError
from tests.engine.backends.opened import Opened
from tests.engine.backends.test_states import LINE, read, rows
from tests.filled_models import filled_model

N = 100
NAMES = ("llama", "gemma3", "mamba")
"""Whose states can be cut, whose have a window, and whose are recurrent."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    for name in NAMES:
        filled_model(folder / f"{name}.gguf", name)
    return folder


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    opened = Opened(folder, NativeLog())
    yield opened
    opened.close()


def native_of(backend: LlamaCppBackend) -> object:
    return backend.native


def written_by_llama_cpp(backend: LlamaCppBackend, path: Path, integers: list[int]) -> None:
    array = (llama_cpp.llama_token * len(integers))(*integers)
    assert llama_cpp.llama_state_seq_save_file(
        native_of(backend), str(path).encode(), 0, array, len(integers)
    )


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpp_reads_what_is_written_and_goes_on_from_it(
    opened: Opened, name: str, tmp_path: Path
) -> None:
    sequence = opened(name).open()
    read(sequence, N)
    nbytes = write_slot_file(tmp_path / "slot", LINE[:N], [sequence.save()])
    expected = rows(sequence)
    assert (tmp_path / "slot").stat().st_size == nbytes

    other = opened(name)
    fresh = other.open()
    fresh.learn_states()
    tokens, n_tokens = (llama_cpp.llama_token * N)(), ctypes.c_size_t()
    assert nbytes == llama_cpp.llama_state_seq_load_file(
        native_of(other), str(tmp_path / "slot").encode(), 0, tokens, N, ctypes.byref(n_tokens)
    )
    assert list(tokens) == LINE[:N]
    state = other.states.read(0)  # what llama.cpp holds now
    fresh.load(LINE[:N], [state])
    assert np.array_equal(rows(fresh), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_packed", [False, True])
def test_what_llama_cpp_wrote_is_restored_to_the_bit(
    opened: Opened, name: str, tmp_path: Path, *, is_packed: bool
) -> None:
    backend = opened(name)
    sequence = backend.open()
    read(sequence, N)
    integers = [PACKED, 1, N, *LINE[:N], 0] if is_packed else LINE[:N]
    written_by_llama_cpp(backend, tmp_path / "slot", integers)
    expected = rows(sequence)

    saved = read_slot_file(tmp_path / "slot")
    assert list(saved.tokens) == LINE[:N]
    assert saved.type_k == saved.type_v == (None if name == "mamba" else "f16")
    fresh = opened(name).open()
    fresh.load(saved.tokens, [saved.state])
    assert np.array_equal(rows(fresh), expected)


def test_stretches_of_one_of_several_streams_become_one_line(
    opened: Opened, tmp_path: Path
) -> None:
    backend = opened("llama", n_slots=2, n_ctx=1024)
    backend.open()
    sequence = backend.open()
    read(sequence, N)
    head, tail = backend.split_state(sequence.save(), 37)
    write_slot_file(tmp_path / "slot", LINE[:N], [head, tail])
    expected = rows(sequence)

    saved = read_slot_file(tmp_path / "slot")
    alone = opened("llama").open()
    alone.load(saved.tokens, [saved.state])
    assert np.allclose(rows(alone), expected, atol=1e-4)
    sequence.load(saved.tokens, [whole_state([saved.state], n_streams=2)])
    assert np.array_equal(rows(sequence), expected)


def test_a_prompt_whose_last_token_was_never_computed_is_cut_to_its_state(
    opened: Opened, tmp_path: Path
) -> None:
    backend = opened("llama")
    read(backend.open(), N)
    written_by_llama_cpp(backend, tmp_path / "slot", LINE[: N + 1])
    assert len(read_slot_file(tmp_path / "slot").tokens) == N


@pytest.fixture
def slot(opened: Opened, tmp_path: Path) -> Path:
    sequence = opened("llama").open()
    read(sequence, N)
    write_slot_file(tmp_path / "slot", LINE[:N], [sequence.save()])
    return tmp_path / "slot"


def test_what_is_no_slot_file_or_was_cut_is_refused_with_the_reason(slot: Path) -> None:
    data = slot.read_bytes()
    at = SLOT_HEADER.size
    cases = {
        "other bytes": b"GGUF" + data[4:],
        "version 9": SLOT_HEADER.pack(SLOT_MAGIC, 9, N) + data[at:],
        "cut off": data[: at + 40],
        "unknown layout": data[:-7],
        "its state holds 100": SLOT_HEADER.pack(SLOT_MAGIC, SLOT_VERSION, 50)
        + data[at : at + 200] + data[at + 4 * N :],
        "no line of tokens": data[:at] + struct.pack("<i", -7) + data[at + 4 :],
        "not known": data[:at] + struct.pack("<ii", -1, 9) + data[at + 8 :],
        "images or sound": data[:at] + struct.pack("<4i", -1, 1, 0, 1) + data[at + 16 :],
        "has fewer": data[:at] + struct.pack("<3i", -1, 1, 5000) + data[at + 12 :],
        "begins with": b"",
    }  # fmt: skip
    for said, changed in cases.items():
        slot.write_bytes(changed)
        with pytest.raises(StateError, match=said):
            read_slot_file(slot)
    with pytest.raises(StateError, match=r"none of llama\.cpp"):
        whole_state([b"another backend's"])


def test_a_file_that_ends_behind_its_tokens_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cut.slot"
    path.write_bytes(SLOT_HEADER.pack(SLOT_MAGIC, SLOT_VERSION, 3) + struct.pack("<3i", 5, 6, 7))
    with pytest.raises(StateError, match="holds 0"):
        read_slot_file(path)
