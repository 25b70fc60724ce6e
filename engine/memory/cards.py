"""Cards and machines by name, to plan for those that are not here."""

import re
import tomllib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from engine.errors import HardwareError
from engine.memory import hardware
from engine.memory.hardware import Device, Instructions, Vendor, apple_share
from engine.memory.units import GIB, MIB
from engine.validation import nearest

CARDS_PATH = Path(__file__).with_name("cards.toml")
CARDS_HINT = "write a card from `kvchat models cards`, or a size such as 24GiB"
SIZE = re.compile(r"\s+(?P<gib>\d+)\s*gi?b$", re.IGNORECASE)
FILLERS = re.compile(
    r"\b(nvidia|geforce|radeon|amd|intel|apple|tesla|quadro|instinct|graphics|generation)\b|\((r|tm)\)"
)
NUMBERED = re.compile(r"^GPU \d+ · ")
"""What stands before the name of one of several cards."""
FAMILY = re.compile(r"^(rtx|gtx|rx|arc)(?=[a-z]?\d)")


class UnknownCardError(HardwareError):
    """No card has that name, or several have."""

    title = "Unknown card"


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a machine whose GPU shares the RAM."""

    vendor: Vendor
    name: str
    memory_bytes: int
    """What a GPU may take: the driver's total, or the part of a shared memory."""
    bandwidth_gbps: float
    """Speed of the memory in GB/s."""
    aliases: tuple[str, ...] = ()
    ram_bytes: int | None = None
    """The whole memory where GPU and CPU share it; None for cards with their own."""
    is_nominal: bool = False
    """Whether the size is that on the box, a little more than the driver's."""
    instructions: Instructions | None = None
    """What the CPU of a machine with one memory can; None for cards."""

    @property
    def is_unified(self) -> bool:
        """Whether the memory is that of the whole machine."""
        return self.ram_bytes is not None

    def device(self) -> Device:
        """The card as a GPU that is all free."""
        nbytes, is_unified = self.memory_bytes, self.is_unified
        return Device(self.name, "gpu", nbytes, nbytes, is_unified, vendor=self.vendor)


@cache
def all_cards() -> tuple[Card, ...]:
    """Every card of the table; machines once for each size of their memory."""
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
    raise UnknownCardError(f"unknown card {name.strip()!r}: {hint}")


def card_of(device: Device) -> Card | None:
    """The card of the table that a GPU is, by its name and memory; None where that is not clear."""
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
            for key in _keys(name):
                found[key] = (*found.get(key, ()), card)
    full = {_key(name): card for card in all_cards() for name in (card.name, *card.aliases)}
    return found | {key: (card,) for key, card in full.items()}


def _keys(name: str) -> set[str]:
    """The keys of a name: with and without its family, with and without its size."""
    whole, bare = _key(name), _key(SIZE.sub("", name))
    return {whole, bare, FAMILY.sub("", whole), FAMILY.sub("", bare)}


def _key(name: str) -> str:
    text = re.sub(r"(?<=\d)\s*gib\b", "gb", name.lower())
    return re.sub(r"[^a-z0-9+]", "", FILLERS.sub("", text))


def _cards(entry: dict[str, Any]) -> list[Card]:
    vendor, name, bandwidth = entry["vendor"], entry["name"], entry["bandwidth_gbps"]
    aliases, share = entry.get("aliases", []), entry.get("gpu_share")
    if "memory_mib" in entry:
        memory, is_nominal = entry["memory_mib"] * MIB, entry.get("basis") == "nominal"
        return [Card(vendor, name, memory, bandwidth, tuple(aliases), is_nominal=is_nominal)]
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


def planned_devices(
    *,
    vram_bytes: tuple[int, ...] = (),
    cards: tuple[str, ...] = (),
    ram_bytes: int | None = None,
    has_gpu: bool = True,
    instructions: Instructions | None = None,
) -> tuple[Device, ...]:
    """The devices of the planned machine; what is not given is that of this machine.

    Sizes come before cards, and RAM last, as llama.cpp counts devices.

    Args:
        vram_bytes: Memory of GPUs.
        cards: Cards by name, or one machine.
        ram_bytes: RAM.
        has_gpu: False plans without the GPUs that are here.
        instructions: What the CPU can; None is what that of a named machine can, or this one.

    Raises:
        UnknownCardError: a card is not known.
        HardwareError: a size is zero or negative, or a machine with one memory has other parts.
    """
    for nbytes in (*vram_bytes, *(() if ram_bytes is None else (ram_bytes,))):
        if nbytes <= 0:
            raise HardwareError(f"a device of {nbytes} bytes has no memory: write a size above 0")
    named = tuple(find_card(name) for name in cards)
    machine = next((card for card in named if card.is_unified), None)
    if machine is not None and (len(named) > 1 or vram_bytes or ram_bytes is not None):
        raise HardwareError(
            f"{machine.name} is a complete machine with unified memory: remove other "
            "devices and --ram"
        )
    if not has_gpu and (named or vram_bytes):
        raise HardwareError("--no-gpu cannot be combined with devices: remove one of them")
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
