"""Cards and machines by name, and typed GPUs.

`8GiB, 2x24`, `RTX 3060 + 12GiB`, `host1:2x24GiB`.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from engine.configuration import WORKER
from engine.errors import HardwareError, shown
from engine.memory import hardware
from engine.memory.hardware import Device, Instructions, Vendor, apple_share
from engine.memory.units import GIB, MIB, parse_bytes
from engine.validation import nearest

CARDS_PATH = Path(__file__).with_name("cards.toml")
CARDS_HINT = "use a name from `kvchat models cards`, or a size such as 24GiB"
SIZE = re.compile(r"\s+(?P<gib>\d+)\s*gi?b$", re.IGNORECASE)
FILLERS = re.compile(
    r"\b(nvidia|geforce|radeon|amd|intel|apple|tesla|quadro|instinct|graphics|generation)\b|\((r|tm)\)"
)
NUMBERED = re.compile(r"^GPU \d+ · ")  # what precedes the name of one of several cards
FAMILY = re.compile(r"^(rtx|gtx|rx|arc)(?=[a-z]?\d)")
MAX_GPUS = 16  # `GGML_CUDA_MAX_DEVICES` of llama.cpp 0c1e57098
DEFAULT_PORT = 50052  # of `ggml-rpc-server`
MAX_GIB = 1024  # the largest number alone that is a size and not the name of a card
SEPARATOR = re.compile(r"[;+]|\sand\s|,")
GPUS = re.compile(
    r"(?:(?P<host>[^:\s]+)(?::(?P<port>\d{1,5}))?:\s*)?"
    r"(?:(?P<count>\d{1,3})\s*[x×]\s*)?(?P<named>[^:\s][^:]*)"  # noqa: RUF001  as people type it
)


class UnknownCardError(HardwareError):
    """No card has that name, or several have."""

    title = "Unknown card"


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a machine whose GPU shares the RAM."""

    vendor: Vendor
    name: str
    memory_bytes: int
    """Memory that a GPU may use: the driver's total, or its part of a unified memory."""
    bandwidth_gbps: float
    """Speed of the memory in GB/s."""
    aliases: tuple[str, ...] = ()
    ram_bytes: int | None = None
    """The whole memory if GPU and CPU share it; None for cards with their own."""
    instructions: Instructions | None = None
    """Instruction sets of the CPU of a machine with unified memory; None for cards."""

    @property
    def is_unified(self) -> bool:
        """Whether the memory is that of the whole machine."""
        return self.ram_bytes is not None

    def device(self) -> Device:
        """The card as a GPU with all its memory free."""
        nbytes = self.memory_bytes
        return Device(self.name, "gpu", nbytes, nbytes, self.is_unified, vendor=self.vendor)


@cache
def all_cards() -> tuple[Card, ...]:
    """All cards; a machine that is sold with several memory sizes appears once for each size."""
    table = tomllib.loads(CARDS_PATH.read_text(encoding="utf-8"))["cards"]
    return tuple(card for entry in table for card in _cards(entry))


def find_card(name: str) -> Card:
    """The card of a name: `RTX 4090`, `4090`, `rx 7900 xtx`, `M4 Max 64GB`.

    Maker, upper case and spaces do not matter; the size is needed where a card is sold in several.

    Raises:
        UnknownCardError: no card has that name, or several have; the message names what is near.
    """
    found = dict.fromkeys(_by_key().get(_key(name), ()))
    if len(found) == 1:
        return next(iter(found))
    if found:
        options = ", ".join(card.name for card in found)
        raise UnknownCardError(
            f"{name.strip()!r} is sold with several memory sizes: choose one of {options}"
        )
    near = nearest(_key(name), _by_key(), n=4, cutoff=0.6)
    names = dict.fromkeys(card.name for key in near for card in _by_key()[key])
    hint = f"did you mean {' or '.join(list(names)[:3])}?" if names else CARDS_HINT
    raise UnknownCardError(f"no card is called {name.strip()!r}: {hint}")


def card_of(device: Device) -> Card | None:
    """Find a GPU in the table by name and memory; None if it is ambiguous."""
    name = NUMBERED.sub("", device.name)
    found = dict.fromkeys(_by_key().get(_key(name), ()))
    gaps = {card: abs(card.memory_bytes - device.total_bytes) for card in found}
    closest = [card for card, gap in gaps.items() if gap == min(gaps.values())]
    return closest[0] if len({card.bandwidth_gbps for card in closest}) == 1 else None


@cache
def _by_key() -> dict[str, tuple[Card, ...]]:
    found: dict[str, tuple[Card, ...]] = {}
    for card in all_cards():
        for name in (card.name, *card.aliases):
            # A family and a size may be left out.
            whole, bare = _key(name), _key(SIZE.sub("", name))
            for key in {whole, bare, FAMILY.sub("", whole), FAMILY.sub("", bare)}:
                found[key] = (*found.get(key, ()), card)
    full = {_key(name): card for card in all_cards() for name in (card.name, *card.aliases)}
    return found | {key: (card,) for key, card in full.items()}


def _key(name: str) -> str:
    text = re.sub(r"(?<=\d)\s*gib\b", "gb", name.lower())
    return re.sub(r"[^a-z0-9+]", "", FILLERS.sub("", text))


def _cards(entry: dict[str, Any]) -> list[Card]:
    vendor, name, bandwidth = entry["vendor"], entry["name"], entry["bandwidth_gbps"]
    aliases, share = entry.get("aliases", []), entry.get("gpu_share")
    if "memory_mib" in entry:
        return [Card(vendor, name, entry["memory_mib"] * MIB, bandwidth, tuple(aliases))]
    return [
        Card(
            vendor,
            f"{name} {gib}GB",
            round(share * gib * GIB) if share else apple_share(gib * GIB),
            bandwidth,
            tuple(f"{alias} {gib}GB" for alias in aliases),
            ram_bytes=gib * GIB,
            instructions="avx2" if vendor == "AMD" else "arm",
        )
        for gib in entry["memory_gib"]
    ]


@dataclass(frozen=True, slots=True)
class TypedGpu:
    """A GPU by the size of its memory or by its card."""

    nbytes: int | None = None
    card: str | None = None
    endpoint: str | None = None
    """`host:port` of the worker that has it; None for this machine."""


def parse_devices(text: str) -> tuple[TypedGpu, ...]:
    """Parse GPUs separated by commas, semicolons, plus signs or `and`.

    A number without a unit is GiB.

    Raises:
        HardwareError: one of them is no size and no card, or there are more than llama.cpp takes.
    """
    if re.search(r"\d,\d", text):
        raise HardwareError(
            f"{shown(text.strip())} is ambiguous: write 7.5GB for one GPU, or 7GiB + 5GiB for two"
        )
    found = tuple(gpu for part in SEPARATOR.split(text) for gpu in _gpus(part.strip()))
    if len(found) > MAX_GPUS:
        raise HardwareError(f"{len(found)} GPUs exceed llama.cpp's limit of {MAX_GPUS}")
    return found


def _gpus(text: str) -> Iterator[TypedGpu]:
    match = GPUS.fullmatch(text)
    if match is None or match["count"] == "0":
        raise HardwareError(
            f"{shown(text)} is not the name or size of a GPU: write, for example, 24GiB, 2x24GiB, "
            "RTX 3060 or host1:24GiB"
        )
    endpoint = None
    if match["host"]:
        port = int(match["port"] or DEFAULT_PORT)
        endpoint = f"{match['host']}:{port}"
        if re.fullmatch(WORKER, endpoint) is None or not 0 < port < 65536:
            raise HardwareError(f"{endpoint!r} is not the address of a worker: write host:port")
    named = match["named"].strip()
    is_size = _is_size(named)
    nbytes = parse_bytes(named) if is_size else None
    gpu = TypedGpu(nbytes, None if is_size else find_card(named).name, endpoint)
    yield from [gpu] * int(match["count"] or 1)


def _is_size(text: str) -> bool:
    """Whether a text is meant as a size: `24`, `24GiB`, and not `4090`."""
    if text.replace(".", "", 1).isdigit():
        return float(text) <= MAX_GIB
    try:
        parse_bytes(text)
    except HardwareError:
        return not any(map(str.isalpha, text)) or text[:1] in "-+0"
    return True


def planned_devices(
    *,
    vram_bytes: tuple[int, ...] = (),
    cards: tuple[str, ...] = (),
    ram_bytes: int | None = None,
    has_gpu: bool = True,
    instructions: Instructions | None = None,
) -> tuple[Device, ...]:
    """GPUs by size, then by card, then the CPU; the rest is taken from this machine.

    `has_gpu` False ignores this machine's GPUs; `instructions` are those of the CPU. Raises
    `HardwareError` if the parts make no machine.
    """
    for nbytes in (*vram_bytes, ram_bytes):
        if nbytes is not None and nbytes <= 0:
            raise HardwareError(f"a device of {nbytes} bytes has no memory: write a size above 0")
    named = tuple(find_card(name) for name in cards)
    machine = next((card for card in named if card.is_unified), None)
    if machine is not None and (len(named) > 1 or vram_bytes or ram_bytes is not None):
        raise HardwareError(
            f"{machine.name} is a complete machine with unified memory: remove other "
            "devices and --ram"
        )
    if not has_gpu and (named or vram_bytes):
        raise HardwareError(
            "--no-gpu cannot be combined with a list of devices: remove --no-gpu or the devices"
        )
    cpu, ram = hardware.find_cpu(), machine.ram_bytes if machine else ram_bytes
    if ram is not None:
        cpu = replace(cpu, total_bytes=ram, free_bytes=ram)
    instructions = instructions or (machine.instructions if machine else None)
    sized = [Device(f"GPU {index}", "gpu", n, n) for index, n in enumerate(vram_bytes)]
    gpus = [  # llama.cpp's number distinguishes two cards of a kind
        replace(card.device(), name=f"GPU {index} · {card.name}")
        for index, card in enumerate(named, len(sized))
    ]
    found = (*sized, *gpus) or (hardware.find_gpus() if has_gpu else ())
    return (*found, replace(cpu, instructions=instructions or cpu.instructions))
