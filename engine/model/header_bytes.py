"""The first bytes of a model, read on while its header is walked through."""

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.errors import ModelFileError

MIB = 1 << 20
MAX_HEADER_BYTES = 64 * MIB
"""Headers that are known take up to 20 MiB."""


@dataclass(slots=True)
class HeaderBytes:
    """What is there of a file: bytes from its start on, never more than a header can have."""

    name: str
    """What errors call the file."""
    nbytes: int
    """Size of the whole file."""
    more: Callable[[int, int], bytes]
    """Gives the bytes from one place up to another; fewer than asked where the file ends."""
    chunk_bytes: int = MIB
    """How much is asked for at once."""
    data: bytearray = field(default_factory=bytearray)

    def check(self, end: int, at: int) -> None:
        """Refuse a header that reaches as far as `end` and cannot.

        Raises:
            ModelFileError: the file ends before, or the header is longer than its limit; `at` is
                the place that the message names.
        """
        if end > self.nbytes:
            raise self.error(at, "the header ends in the middle: the file is truncated")
        if end > MAX_HEADER_BYTES:
            size = f"{MAX_HEADER_BYTES // MIB} MiB"
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
        """Give the error that names file and byte."""
        return ModelFileError(f"{self.name} cannot be read at byte {at}: {why}")
