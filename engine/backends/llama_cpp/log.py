"""llama.cpp's log: kept for error messages, and read for the sizes of its buffers."""

import ctypes
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import llama_cpp

from engine.events import BufferSize
from engine.memory.units import MIB

LEVEL_INFO, LEVEL_ERROR, LEVEL_CONTINUATION = 2, 4, 5

BUFFER_LINE = re.compile(
    r"(?P<device>\S+)\s+(?P<kind>model|KV|compute|output|RS)\s+buffer size\s*=\s*"
    r"(?P<mib>[\d.]+)\s*MiB"
)
CACHE_LINE = re.compile(r"llama_kv_cache\w*: size =\s*(?P<mib>[\d.]+) MiB")
"""The size of a cache over all devices; in a dry run its buffers are printed as empty."""
PROJECTOR_LINE = re.compile(r"load_hparams: model size:\s*(?P<mib>[\d.]+) MiB")
COMPRESSOR_LINE = re.compile(r"llama_dsv4_comp_state: .*, size =\s*(?P<mib>[\d.]+) MiB")
"""State that DeepSeek V4 keeps beside its caches, one line for each kind."""


class NativeLog:
    """Collects what llama.cpp logs in this process; there is one log for all of it.

    Sizes are printed with two decimals, so each buffer is exact to 0.005 MiB.
    """

    _called: ClassVar["NativeLog | None"] = None
    """The one that llama.cpp calls: it lives until another takes its place."""

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
        """Forget what was logged so far."""
        self._lines.clear()
        self._errors.clear()

    def errors(self) -> str:
        """The last error lines as one sentence-like text, or nothing."""
        return "; ".join(line.strip() for line in list(self._errors)[-3:])

    def cache_sizes(self) -> tuple[int, ...]:
        """The size in bytes of each KV cache that was logged since `clear`."""
        matches = (CACHE_LINE.search(line) for line in self._lines)
        return tuple(round(float(match["mib"]) * MIB) for match in matches if match)

    def compressor_sizes(self) -> tuple[int, ...]:
        """The bytes of each compressor state that was logged since `clear`."""
        matches = (COMPRESSOR_LINE.search(line) for line in self._lines)
        return tuple(round(float(match["mib"]) * MIB) for match in matches if match)

    def projector_buffers(self) -> tuple[BufferSize, ...]:
        """Those of a projector: libmtmd logs its weights without the device of its graph."""
        graph = self.buffers("projector")
        sizes = [match for line in self._lines if (match := PROJECTOR_LINE.search(line))]
        nbytes = round(sum(float(match["mib"]) for match in sizes[:1]) * MIB)
        return (*(replace(each, kind="model", nbytes=nbytes) for each in graph[:1]), *graph[-1:])

    def buffers(self, owner: str) -> tuple[BufferSize, ...]:
        """The buffers that were logged since `clear`."""
        return read_buffers(self._lines, owner)


def read_buffers(lines: Iterable[str], owner: str) -> tuple[BufferSize, ...]:
    """Every buffer size in log lines, in their order."""
    matches = (BUFFER_LINE.search(line) for line in lines)
    return tuple(
        BufferSize(match["device"], match["kind"], round(float(match["mib"]) * MIB), owner)
        for match in matches
        if match
    )


def with_all_rows(
    buffers: tuple[BufferSize, ...], n_rows: int, n_sequences: int
) -> tuple[BufferSize, ...]:
    """Buffers with that of the output as large as a batch of `n_rows` rows makes it.

    It starts with a row for each sequence and grows with the first batch that asks for more
    (`output_reserve` in llama.cpp 0c1e57098).
    """
    growth = max(n_rows / n_sequences, 1.0)
    return tuple(
        replace(buffer, nbytes=round(buffer.nbytes * growth)) if buffer.kind == "output" else buffer
        for buffer in buffers
    )
