"""The numbers of an estimate: what each is for, how sure it is, and the device that holds it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from engine.memory.hardware import Device

Target = Literal["kvchat", "llama-server"]
TARGETS: tuple[Target, ...] = ("kvchat", "llama-server")


class TermKind(StrEnum):
    """The parts of a device's memory, in the order of a bar."""

    WEIGHTS = "weights"
    KV = "kv"
    STATE = "state"
    COMPUTE = "compute"
    DRAFT = "draft"
    """A draft model with its cache, state and graph."""
    PROJECTOR = "projector"
    ADAPTERS = "adapters"
    OVERHEAD = "overhead"


class Source(StrEnum):
    """How sure a number is."""

    EXACT = "exact"
    """By a formula that was proven against llama.cpp."""
    MEASURED = "measured"
    """By llama.cpp's own dry run."""
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Term:
    """One number and where it comes from."""

    nbytes: int
    source: Source
    note: str = ""
    low_bytes: int | None = None
    """Least that an estimate may turn out to be; None where the number is exact or measured."""
    high_bytes: int | None = None


NOTHING = Term(0, Source.EXACT)


@dataclass(frozen=True, slots=True)
class DeviceEstimate:
    """What one device has to hold."""

    device: Device
    terms: dict[TermKind, Term] = field(default_factory=dict)
    shared_bytes: int = 0
    """What GPUs hold of this memory because theirs is a part of it; not in `total_bytes`."""

    @property
    def total_bytes(self) -> int:
        return sum(term.nbytes for term in self.terms.values())

    @property
    def left_bytes(self) -> int:
        """Free memory that stays free; negative where it does not fit."""
        return self.device.free_bytes - self.total_bytes - self.shared_bytes

    def term(self, kind: TermKind) -> Term:
        """Give one part, zero bytes where the device has none of it."""
        return self.terms.get(kind, NOTHING)
