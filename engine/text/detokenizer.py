"""Streaming text: bytes of tokens to characters, and the wait for stop strings."""

import codecs
from collections.abc import Sequence


class StreamingText:
    """Takes the bytes of tokens and gives the text that can be shown.

    It never gives half a character: bytes that may still be completed are held back, bytes that
    cannot become a character turn into U+FFFD. It never gives the start of a stop string either:
    the longest end of the text that may grow into one is held back. Behind a stop string nothing
    more comes.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = tuple(text for text in stop if text)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.text = ""
        """Everything that was given so far."""
        self.stopped_by: str | None = None
        """The stop string that ended the text."""

    def push(self, data: bytes) -> str:
        """Take the bytes of one token, give what became showable."""
        if self.stopped_by is not None:
            return ""
        self._held += self._decoder.decode(data)
        end = self._first_stop()
        if end is None:
            end = len(self._held) - self._n_waiting()
        return self._release(end)

    def resume(self, data: bytes) -> None:
        """Take the bytes of a text that was given before, all of it; half a character waits on."""
        self.text += self._decoder.decode(data)

    def finish(self) -> str:
        """Give what was held back; an unfinished character is dropped."""
        return self._release(len(self._held)) if self.stopped_by is None else ""

    def _release(self, end: int) -> str:
        shown = self._held[:end]
        self._held = "" if self.stopped_by is not None else self._held[end:]
        self.text += shown
        return shown

    def _first_stop(self) -> int | None:
        found = [(at, text) for text in self._stop if (at := self._held.find(text)) >= 0]
        if not found:
            return None
        at, self.stopped_by = min(found, key=lambda pair: (pair[0], -len(pair[1])))
        return at

    def _n_waiting(self) -> int:
        """Length of the longest end of the held text that starts some stop string."""
        longest = 0
        for text in self._stop:
            for n in range(min(len(text) - 1, len(self._held)), longest, -1):
                if self._held.endswith(text[:n]):
                    longest = n
                    break
        return longest
