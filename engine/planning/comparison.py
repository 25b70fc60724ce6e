"""Two plans side by side: what was set otherwise, and what that changes."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from engine.memory.terms import DeviceEstimate, TermKind
from engine.planning.knobs import KNOBS
from engine.planning.planner import Plan, Verdict


@dataclass(frozen=True, slots=True)
class Difference:
    """A knob with another value."""

    label: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class ComparedTerm:
    """One part of a device in both plans; `kind` is None for the sum."""

    kind: TermKind | None
    a_bytes: int
    b_bytes: int

    @property
    def delta_bytes(self) -> int:
        """Bytes that the second plan needs more."""
        return self.b_bytes - self.a_bytes


@dataclass(frozen=True, slots=True)
class ComparedDevice:
    """A device in both plans, by its number among the GPUs; None where a plan lacks it."""

    a: DeviceEstimate | None
    b: DeviceEstimate | None
    terms: tuple[ComparedTerm, ...]
    total: ComparedTerm

    @property
    def name(self) -> str:
        """Its name, both where they differ."""
        found = (device.device.name for device in (self.a, self.b) if device is not None)
        return " / ".join(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The pinned plan A beside plan B."""

    differences: tuple[Difference, ...]
    devices: tuple[ComparedDevice, ...]
    verdicts: tuple[Verdict, Verdict]
    max_n_ctx: tuple[int | None, int | None]


def compare(a: Plan, b: Plan) -> Comparison:
    """The differences of two plans, whose models may differ too."""
    return Comparison(
        _differences(a, b),
        tuple(_device(old, new) for kind in ("gpu", "cpu") for old, new in _pairs(kind, a, b)),
        (_verdict(a), _verdict(b)),
        (a.max_n_ctx, b.max_n_ctx),
    )


def _pairs(
    kind: str, a: Plan, b: Plan
) -> Iterator[tuple[DeviceEstimate | None, DeviceEstimate | None]]:
    def found(plan: Plan) -> list[DeviceEstimate]:
        return [device for device in plan.estimate.devices if device.device.kind == kind]

    return zip_longest(found(a), found(b))


def _verdict(plan: Plan) -> Verdict:
    return plan.verdict


def _differences(a: Plan, b: Plan) -> tuple[Difference, ...]:
    names = (a.model.file.path.stem, b.model.file.path.stem)
    shown = [("model", *names)]
    shown += [(knob.label, knob.format(a.setup), knob.format(b.setup)) for knob in KNOBS]
    return tuple(Difference(label, old, new) for label, old, new in shown if old != new)


def _device(a: DeviceEstimate | None, b: DeviceEstimate | None) -> ComparedDevice:
    terms = tuple(
        ComparedTerm(kind, _nbytes(a, kind), _nbytes(b, kind))
        for kind in TermKind
        if _nbytes(a, kind) or _nbytes(b, kind)
    )
    total = ComparedTerm(
        None, sum(term.a_bytes for term in terms), sum(term.b_bytes for term in terms)
    )
    return ComparedDevice(a, b, terms, total)


def _nbytes(device: DeviceEstimate | None, kind: TermKind) -> int:
    return 0 if device is None else device.term(kind).nbytes
