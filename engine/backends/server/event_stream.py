"""Lines and events of a running answer, each within a bound."""

import time
from collections.abc import Callable, Iterable, Iterator

READ_EVERY_S = 0.05
"""How often a running stream is read: what came meanwhile is read at once, so that a quick server
wakes this process no more often than a slow one."""
WAITED_S = 0.001
"""A part of a stream that takes longer was not there yet."""


class TooLongError(ValueError):
    """A line or an event that does not end within its bound."""


def parts_as_they_come(
    stream: Iterator[bytes], rest: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """The parts of a stream: those that are there at once, then a rest in which more may come.

    Args:
        stream: What a server sends, in as many parts as it wrote.
        rest: Takes the seconds for which nothing is read.
    """
    while True:
        asked_at = time.monotonic()
        part = next(stream, None)
        if part is None:
            return
        had_to_wait = time.monotonic() - asked_at > WAITED_S
        yield part
        if had_to_wait:
            rest(READ_EVERY_S)


def lines(chunks: Iterable[bytes], *, limit: int) -> Iterator[bytes]:
    """The lines of a stream as they become whole, without their ends; the last may have none.

    Args:
        chunks: The stream.
        limit: Most bytes of a line.

    Raises:
        TooLongError: a line is longer.
    """
    held = bytearray()
    for chunk in chunks:
        # A line that grows byte by byte is split once, when it is whole.
        before, end, rest = chunk.rpartition(b"\n")
        held += before if end else rest
        whole = held.split(b"\n") if end else []
        held = bytearray(rest) if end else held
        if any(len(line) > limit for line in whole) or len(held) > limit:
            raise TooLongError(f"more than {limit:,} bytes")
        for line in whole:
            yield bytes(line.removesuffix(b"\r"))
    if held:
        yield bytes(held.removesuffix(b"\r"))


def events(read: Iterable[bytes], *, limit: int = 1 << 22) -> Iterator[bytes]:
    """The data of each event (WHATWG HTML §9.2.6); empty for a comment, which keeps a stream open.

    An event that the end of the stream cuts off is none.

    Args:
        read: The lines of the stream.
        limit: Most bytes of an event.

    Raises:
        TooLongError: an event is longer.
    """
    data: list[bytes] = []
    n_bytes = 0
    for line in read:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
            n_bytes += len(data[-1]) + len(b"\n")  # empty lines count too
            if n_bytes > limit:
                raise TooLongError(f"more than {limit:,} bytes")
        elif not line:
            if data:
                yield b"\n".join(data)
            data.clear()
            n_bytes = 0
        else:
            yield b""
