"""The buffers that a llama-server of ours allocated, read from its log.

Read are the lines `... buffer size = 96.00 MiB` of llama.cpp 0c1e57098 with `--log-verbosity 4`.
"""

import re
from pathlib import Path

from engine.errors import EngineError
from engine.files import read_text
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
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from error
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
        elif "buffer size" in line and (match := BUFFER.search(line)):
            kind = "RS" if match["kind"].startswith("DSV4") else match["kind"]
            of = "projector" if PROJECTOR.search(match["function"]) else owner
            buffer = BufferSize(match["device"], kind, round(float(match["mib"]) * MIB), of)
            if kind == "compute":
                graphs[n_contexts, of, buffer.device] = buffer
            else:
                held.append(buffer)
    return (*held, *graphs.values())
