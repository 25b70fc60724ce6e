"""Lines and server-sent events out of a stream of bytes, none longer than a bound."""

from collections.abc import Iterable, Iterator


class TooLongError(ValueError):
    """A line or an event that does not end within its bound."""


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
        held += chunk
        *whole, rest = held.split(b"\n")
        if any(len(line) > limit for line in whole) or len(rest) > limit:
            raise TooLongError(f"more than {limit:,} bytes")
        for line in whole:
            yield bytes(line.removesuffix(b"\r"))
        held = rest
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
