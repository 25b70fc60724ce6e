"""The buffers that a llama-server of ours allocated, read from its log.

Read are the lines `... buffer size = 96.00 MiB` of llama.cpp 0c1e57098 with `--log-verbosity 4`.
"""

import re
from collections.abc import Iterable, Iterator
from io import BufferedReader, TextIOWrapper
from pathlib import Path

from engine.errors import EngineError
from engine.files import open_file
from engine.memory.units import MIB, BufferSize

MAX_LINE = 64 * 1024
"""Characters that are read as one line: a prompt may stand in a log as one."""
MAX_TEXT = 512
"""Characters of a line that are looked at: those about memory have up to 200."""
MAX_BUFFERS = 4096
"""Of one run: one on 16 GPUs has a hundred."""
MAX_CHARACTERS = 1 << 30
"""Of a log."""
MARKS = ("buffer size", "draft model", "initializing", "context")
"""A line without any of them has no buffer size."""
COLOR = re.compile(r"\x1b\[[0-9;]*m")
BUFFER = re.compile(
    r"\b(?P<function>\w++):\s++(?P<device>\S++)\s++"
    r"(?P<kind>model|KV|RS|compute|output|DSV4 \w+ state)\s+"
    r"buffer size\s*=\s*(?P<mib>\d{1,9}(?:\.\d{1,9})?)\s*MiB"
)
"""DeepSeek V4 keeps state for its compressors."""
NEW_RUN = "llama_server: initializing"
NEW_CONTEXT = "constructing llama_context"
DRAFT = "loading draft model"
PROJECTOR = re.compile(r"clip|mtmd|compute_meta")


class LogError(EngineError):
    """A log that cannot be read, or that has no buffer sizes."""

    title = "The log cannot be used"


def read_buffers(path: Path) -> tuple[BufferSize, ...]:
    """The buffers of the last run in a log, exact to 0.005 MiB.

    Raises:
        LogError: the file cannot be read, or has no buffer sizes.
    """
    try:
        with open_file(path) as raw, TextIOWrapper(BufferedReader(raw), "utf-8", "replace") as file:
            found = parse_buffers(_lines(file))
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
    if not found:
        raise LogError(f"{path} contains no memory figures: start llama-server with -lv 4")
    return found


def parse_buffers(lines: Iterable[str]) -> tuple[BufferSize, ...]:
    """The buffers of the last run in the lines of a log.

    A context prints its compute buffers again with each new graph, so the last ones
    count; caches and weights of several devices or kinds add up.

    Raises:
        LogError: they are no text, or more than a run can have.
    """
    held: list[BufferSize] = []
    graphs: dict[tuple[int, str, str], BufferSize] = {}
    n_contexts, owner = 0, "target"
    for line in lines:
        if not any(mark in line for mark in MARKS):
            continue
        text = COLOR.sub("", line[:MAX_TEXT])
        if NEW_RUN in text and (held or graphs):
            held, graphs, n_contexts, owner = [], {}, 0, "target"
        if DRAFT in text:
            owner = "draft"
        elif match := BUFFER.search(text):
            buffer = _buffer(match, owner)
            if buffer.kind == "compute":
                graphs[n_contexts, buffer.owner, buffer.device] = buffer
            else:
                held.append(buffer)
        n_contexts += NEW_CONTEXT in text
        if len(held) + len(graphs) > MAX_BUFFERS:
            raise LogError(f"the log lists more than {MAX_BUFFERS:,} buffers in one run")
    return (*held, *graphs.values())


def _buffer(match: re.Match[str], owner: str) -> BufferSize:
    kind = "RS" if match["kind"].startswith("DSV4") else match["kind"]
    nbytes = round(float(match["mib"]) * MIB)
    of = "projector" if PROJECTOR.search(match["function"]) else owner
    return BufferSize(match["device"], kind, nbytes, of)


def _lines(file: TextIOWrapper) -> Iterator[str]:
    n_left = MAX_CHARACTERS
    while line := file.readline(MAX_LINE):
        n_left -= len(line)
        if n_left < 0:
            raise LogError("the log is larger than 1 GiB: shorten the log to one run")
        if "\0" in line:
            raise LogError("the log is not text: use the output of llama-server")
        yield line
