"""Buffers in a log of llama.cpp 0c1e57098: lines such as `... buffer size = 96.00 MiB`.

llama-server writes them with `--log-verbosity 4`; in our processes the log callback gets them.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from engine.errors import EngineError
from engine.files import read_text, reason_of
from engine.memory.units import MIB, BufferSize

MAX_BYTES = 64 * MIB
MAX_LINE = 512  # characters: lines about memory have up to 200, one with a prompt any number
MAX_BUFFERS = 4096  # a run on 16 GPUs has a hundred
COLOR = re.compile(r"\x1b\[[0-9;]*m")
BUFFER = re.compile(
    r"\b(?P<function>\w++):\s++(?P<device>\S++)\s++"
    r"(?P<kind>model|KV|RS|compute|output|DSV4 \w+ state)\s+"
    r"buffer size\s*=\s*(?P<mib>\d{1,9}(?:\.\d{1,9})?)\s*MiB"
)
"""DeepSeek V4 keeps state for its compressors."""
NEW_CONTEXT = "constructing llama_context"
DRAFT = "loading draft model"
PROJECTOR = re.compile(r"clip|mtmd|compute_meta")


class LogError(EngineError):
    """A log that cannot be read, or that has no buffer sizes."""

    title = "The log cannot be used"


def read_buffers(path: Path) -> tuple[BufferSize, ...]:
    """The buffers of the run in a log, exact to 0.005 MiB; raises `LogError`."""
    try:
        text = read_text(path, limit=MAX_BYTES, errors="replace")
    except OSError as error:
        raise LogError(f"{path} cannot be read: {reason_of(error)}") from error
    found = parse_buffers(text)
    if not 0 < len(found) <= MAX_BUFFERS:
        raise LogError(f"{path} contains no memory figures: start llama-server with -lv 4")
    return found


def parse_buffers(text: str) -> tuple[BufferSize, ...]:
    """The buffers in a log.

    A context prints its compute buffers again with each new graph, so the last ones
    count; caches and weights of several devices or types add up.
    """
    held: list[BufferSize] = []
    graphs: dict[tuple[int, str, str], BufferSize] = {}
    n_contexts, owner = 0, "target"
    for line in (COLOR.sub("", each[:MAX_LINE]) for each in text.split("\n")):
        n_contexts += NEW_CONTEXT in line
        if DRAFT in line:
            owner = "draft"
        for buffer in buffers_in((line,), owner):
            if buffer.kind == "compute":
                graphs[n_contexts, buffer.owner, buffer.device] = buffer
            else:
                held.append(buffer)
    return (*held, *graphs.values())


def buffers_in(lines: Iterable[str], owner: str) -> tuple[BufferSize, ...]:
    """The buffers in some lines, in order; those of a projector have the owner `projector`."""
    matches = (BUFFER.search(line) for line in lines if "buffer size" in line)
    return tuple(
        BufferSize(
            match["device"],
            "RS" if match["kind"].startswith("DSV4") else match["kind"],
            round(float(match["mib"]) * MIB),
            "projector" if PROJECTOR.search(match["function"]) else owner,
        )
        for match in matches
        if match
    )
