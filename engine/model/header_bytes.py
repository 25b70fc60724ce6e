"""The first bytes of a model: read on while its header is walked, strings stepped over."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from engine.errors import ModelFileError

CHUNK_BYTES = 1 << 20
MAX_HEADER_BYTES = 64 << 20
"""Headers that are known take up to 20 MiB."""
BLOCK = 256
"""Strings that one match steps over."""
USUAL_LENGTHS = (5, 6, 7, 4, 8, 3, 9, 10, 2, 1, 12, 11, 13, 14, 15, 16)
"""Most frequent first: the order in which the pattern tries them."""
MAX_SHORT = 63
"""Longest string of the pattern; blocks with a longer one are walked through."""


@dataclass(slots=True)
class HeaderBytes:
    """What is there of a file: bytes from its start on, never more than a header can have."""

    name: str
    """What errors call the file."""
    nbytes: int
    """Size of the whole file."""
    more: Callable[[int, int], bytes]
    """The bytes from one index up to another; fewer than asked where the file ends."""
    chunk_bytes: int = CHUNK_BYTES
    """How much is asked for at once."""
    data: bytearray = field(default_factory=bytearray)

    def check(self, end: int, at: int) -> None:
        """Refuse a header that reaches as far as `end` and cannot.

        Raises:
            ModelFileError: the file ends before, or the header is longer than its limit; `at` is
                the byte that the message names.
        """
        if end > self.nbytes:
            raise self.error(at, "the header ends in the middle: the file is truncated")
        if end > MAX_HEADER_BYTES:
            size = f"{MAX_HEADER_BYTES >> 20} MiB"
            raise self.error(at, f"the header is longer than {size}, as no model's is")

    def reach(self, end: int, at: int) -> None:
        """Have every byte before `end`; raises as `check` does."""
        self.check(end, at)
        while len(self.data) < end:
            start = len(self.data)
            stop = min(max(end, start + self.chunk_bytes), self.nbytes, MAX_HEADER_BYTES)
            found = self.more(start, stop)
            if not found:
                raise self.error(start, f"the file ends here, it had {self.nbytes} bytes before")
            self.data += found

    def error(self, at: int, why: str) -> ModelFileError:
        """The error that names file and byte."""
        return ModelFileError(f"{self.name} cannot be read at byte {at}: {why}")


def after_strings(data: bytearray, at: int, count: int) -> tuple[int, int]:
    """Step over strings, each behind its length in eight bytes.

    A pattern that holds every short string takes half of the time that a loop takes.

    Args:
        data: The bytes that are there.
        at: Index of the first string.
        count: How many strings there are.

    Returns:
        The byte behind the last string that was stepped over, which may lie behind `data`, and how
        many strings the bytes did not reach.
    """
    match = _block().match
    while count >= BLOCK:
        found = match(data, at)
        if found is not None:
            at = found.end()
        else:
            at, n_left = _one_by_one(data, at, BLOCK)
            if n_left:
                return at, count - BLOCK + n_left
        count -= BLOCK
    return _one_by_one(data, at, count)


def _one_by_one(data: bytearray, at: int, count: int) -> tuple[int, int]:
    # A length is looked up in one of eight views, by the residue of its index: unpacking takes
    # longer. The views read as this machine does, which is little-endian wherever kvchat runs.
    with memoryview(data) as whole:
        views = [whole[shift : shift + (len(whole) - shift) // 8 * 8] for shift in range(8)]
        lengths = [view.cast("Q") for view in views]
        n_left = count
        try:
            for n_left in range(count, 0, -1):  # noqa: B007  told when the bytes end
                at += 8 + lengths[at & 7][at >> 3]
        except IndexError:
            return at, n_left
        finally:
            for view in (*lengths, *views):
                view.release()
    return at, 0


@cache
def _block() -> re.Pattern[bytes]:
    """The pattern of a block: never tried another way once a string has matched."""
    others = [length for length in range(MAX_SHORT + 1) if length not in USUAL_LENGTHS]
    zeros = re.escape(bytes(7))
    strings = (
        re.escape(bytes([length])) + zeros + b".{%d}" % length
        for length in (*USUAL_LENGTHS, *others)
    )
    return re.compile(b"(?:" + b"|".join(strings) + b"){%d}+" % BLOCK, re.DOTALL)
