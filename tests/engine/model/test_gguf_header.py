"""Stepping over strings, against a loop that unpacks each length."""

import random
import struct

import pytest

from engine.model.gguf_header import BLOCK, MAX_SHORT, after_strings


def strings(lengths: list[int]) -> bytearray:
    return bytearray(b"".join(struct.pack("<Q", n) + random.randbytes(n) for n in lengths))


@pytest.mark.parametrize("largest", [0, 1, 5, MAX_SHORT, MAX_SHORT + 1, 255, 256, 70_000])
@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_any_strings_are_stepped_over(largest: int, count: int) -> None:
    rng = random.Random(count)
    lengths = [rng.randrange(min(largest, 20) + 1) for _ in range(count)]
    if count:
        lengths[rng.randrange(count)] = largest
    data = bytearray(b"before!") + strings(lengths) + b"behind"
    assert after_strings(data, 7, count) == (len(data) - 6, 0)


def test_strings_of_zeros_and_of_lengths_are_no_lengths() -> None:
    tricky = [bytes(8), struct.pack("<Q", 5), b"\n" * 9, bytes(63)] * BLOCK
    data = bytearray(b"".join(struct.pack("<Q", len(text)) + text for text in tricky))
    assert after_strings(data, 0, len(tricky)) == (len(data), 0)


def test_a_long_string_that_holds_strings_is_one_string() -> None:
    inside = b"five!" + (struct.pack("<Q", 8) + b"8 bytes!") * 16
    assert len(inside) == 256 + 5, "the first byte of its length says five"
    tricky = [inside, *[b"word"] * (2 * BLOCK - 1)]
    data = bytearray(b"".join(struct.pack("<Q", len(text)) + text for text in tricky))
    assert after_strings(data, 0, len(tricky)) == (len(data), 0)


def test_bytes_that_end_say_how_many_strings_are_left() -> None:
    lengths = [n % 9 for n in range(2 * BLOCK)]
    data = strings(lengths)
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + 8 + length)
    for end in (0, 7, 8, 20, len(data) // 2, len(data) - 1):
        at, n_left = after_strings(data[:end], 0, len(lengths))
        assert at == starts[len(lengths) - n_left]
        assert n_left == 0 or at + 8 > end


def test_a_length_beyond_all_bytes_is_given_back_as_it_is() -> None:
    data = bytearray(struct.pack("<Q", 2**64 - 1))
    assert after_strings(data, 0, 1) == (2**64 + 7, 0)
    assert after_strings(data, 0, 2) == (2**64 + 7, 1)
    data += b"more"
    assert len(data) == 12, "no view of the bytes is left open"
