"""llama.cpp's log, as the source of error messages and buffer sizes."""

import ctypes
import re
from collections import deque
from dataclasses import replace
from typing import ClassVar

import llama_cpp

from engine.memory.server_log import buffers_in
from engine.memory.units import MIB, BufferSize

LEVEL_INFO, LEVEL_ERROR, LEVEL_CONTINUATION = 2, 4, 5

CACHE_LINE = re.compile(r"llama_kv_cache\w*: size =\s*(?P<mib>[\d.]+) MiB")
"""Size of a cache over all devices; a dry run logs its buffers as empty."""
PROJECTOR_LINE = re.compile(r"load_hparams: model size:\s*(?P<mib>[\d.]+) MiB")


class NativeLog:
    """Collects the log lines of llama.cpp; one log per process.

    Sizes are printed with two decimals, so each buffer is exact to 0.005 MiB.
    """

    _called: ClassVar["NativeLog | None"] = None
    """The callback in use, referenced here so that it is not freed."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=2000)
        self._errors: deque[str] = deque(maxlen=20)
        self._partial = ""
        self._level = LEVEL_INFO
        self.callback = llama_cpp.llama_log_callback(self._receive)
        llama_cpp.llama_log_set(self.callback, ctypes.c_void_p(0))
        NativeLog._called = self

    def _receive(self, level: int, text: bytes, _data: int | None) -> None:
        if level != LEVEL_CONTINUATION:
            self._level = level
        if self._level < LEVEL_INFO:
            return
        self._partial += text.decode("utf-8", "replace")
        while "\n" in self._partial:
            line, self._partial = self._partial.split("\n", 1)
            self._lines.append(line)
            if self._level == LEVEL_ERROR:
                self._errors.append(line)

    def clear(self) -> None:
        """Drop all lines."""
        self._lines.clear()
        self._errors.clear()

    def errors(self) -> str:
        """The last error lines as one text; empty without errors."""
        return "; ".join(line.strip() for line in list(self._errors)[-3:])

    def sizes(self, pattern: re.Pattern[str]) -> tuple[int, ...]:
        """Bytes in the lines logged since `clear` that match a pattern."""
        matches = (pattern.search(line) for line in self._lines)
        return tuple(round(float(match["mib"]) * MIB) for match in matches if match)

    def projector_buffers(self) -> tuple[BufferSize, ...]:
        """Buffers of a projector; libmtmd logs its weights without the device of its graph."""
        graph, nbytes = self.buffers("projector"), sum(self.sizes(PROJECTOR_LINE)[:1])
        return (*(replace(each, kind="model", nbytes=nbytes) for each in graph[:1]), *graph[-1:])

    def buffers(self, owner: str) -> tuple[BufferSize, ...]:
        """Buffers logged since `clear`."""
        return buffers_in(self._lines, owner)


def with_all_rows(
    buffers: tuple[BufferSize, ...], n_rows: int, n_sequences: int
) -> tuple[BufferSize, ...]:
    """Buffers with the output buffer enlarged to a batch of `n_rows` rows.

    It starts with one row per sequence and grows with the first larger batch (`output_reserve` in
    llama.cpp 0c1e57098).
    """
    growth = max(n_rows / n_sequences, 1.0)
    return tuple(
        replace(buffer, nbytes=round(buffer.nbytes * growth)) if buffer.kind == "output" else buffer
        for buffer in buffers
    )
