"""GPUs as they are typed: `8GiB, 2x24`, `RTX 3060 + 12GiB`, `host1:2x24GiB`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from engine.configuration import WORKER
from engine.errors import HardwareError, shown
from engine.memory.cards import find_card
from engine.memory.units import parse_bytes

MAX_GPUS = 16
"""`GGML_CUDA_MAX_DEVICES` of llama.cpp 0c1e57098."""
DEFAULT_PORT = 50052
"""The port of `ggml-rpc-server`."""
MAX_GIB = 1024
"""The largest number alone that is a size and not the name of a card."""
SEPARATOR = re.compile(r"[;+]|\sand\s|(?<!\d),|,(?!\d)")
GROUPED = re.compile(r"(\d+\s*[x×]\s*)?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*[a-zA-Z]+")  # noqa: RUF001
GPUS = re.compile(
    r"(?:(?P<host>[^:\s]+)(?::(?P<port>\d{1,5}))?:\s*)?"
    r"(?:(?P<count>\d{1,3})\s*[x×]\s*)?(?P<named>[^:\s][^:]*)"  # noqa: RUF001  as people type it
)


@dataclass(frozen=True, slots=True)
class TypedGpu:
    """A GPU by the size of its memory or by its card."""

    nbytes: int | None = None
    """None where a card is named."""
    card: str | None = None
    endpoint: str | None = None
    """`host:port` of the worker that has it; None for this machine."""


def parse_devices(text: str) -> tuple[TypedGpu, ...]:
    """The GPUs that are typed with commas, semicolons, plus signs or `and` between them.

    A number without a unit is GiB. A comma between two digits groups thousands, as in `1,024MiB`,
    or stands between a number with a unit or a card and the next one, as in `8GiB,24`.

    Raises:
        HardwareError: one of them is no size and no card, or there are more than llama.cpp takes.
    """
    parts = [part for each in SEPARATOR.split(text) for part in _at_digits(each)]
    found = tuple(gpu for part in parts for gpu in _gpus(part.strip()))
    if len(found) > MAX_GPUS:
        raise HardwareError(f"{len(found)} GPUs exceed llama.cpp's limit of {MAX_GPUS}")
    return found


def _at_digits(text: str) -> list[str]:
    first, *others = re.split(r"(?<=\d),(?=\d)", text)
    if not others or GROUPED.fullmatch(text.strip()):
        return [text]
    if re.fullmatch(r"[\d.x× ]+", first):  # noqa: RUF001  as people type it
        raise HardwareError(
            f"{shown(text.strip())} is ambiguous: write 7.5GB for one GPU, or 7GiB + 5GiB for two"
        )
    return [first, *_at_digits(",".join(others))]


def _gpus(text: str) -> Iterator[TypedGpu]:
    match = GPUS.fullmatch(text)
    if match is None or match["count"] == "0":
        raise HardwareError(
            f"{shown(text)} is not a GPU: write one such as 24GiB, 2x24GiB, RTX 3060 or host1:24GiB"
        )
    endpoint = _endpoint(match["host"], match["port"]) if match["host"] else None
    named = match["named"].strip()
    if _is_size(named):
        gpu = TypedGpu(parse_bytes(named), endpoint=endpoint)
    else:
        gpu = TypedGpu(card=find_card(named).name, endpoint=endpoint)
    yield from [gpu] * int(match["count"] or 1)


def _endpoint(host: str, port: str | None) -> str:
    endpoint = f"{host}:{port or DEFAULT_PORT}"
    if re.fullmatch(WORKER, endpoint) is None or not 0 < int(port or DEFAULT_PORT) < 65536:
        raise HardwareError(f"{endpoint!r} is not the address of a worker: write host:port")
    return endpoint


def _is_size(text: str) -> bool:
    """Whether a text is meant as a size: `24`, `24GiB`, and not `4090`."""
    if text.replace(".", "", 1).isdigit():
        return float(text) <= MAX_GIB
    try:
        parse_bytes(text)
    except HardwareError:
        return not any(map(str.isalpha, text)) or text[:1] in "-+0"
    return True
