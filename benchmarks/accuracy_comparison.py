"""One case of the accuracy table: bytes of the formulas and of llama.cpp."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from engine.memory.units import MIB

Row = dict[str, object]
Sizes = dict[str, int]

COMPUTE_GOALS = {
    "dense": (0.15, 32 * MIB),
    "experts": (0.25, 128 * MIB),
    "hybrid": (0.25, 128 * MIB),
}
"""Share and bytes of the compute buffers that a formula may be off by, whichever is more."""
TOTAL_GOAL = (0.05, 64 * MIB)
LOW_GOAL = 0.05
WEIGHTS_GOAL = MIB
ROUNDING_BYTES = 3 * 5300
"""What state in the log may be off by: up to three sizes with two decimals of a MiB."""


@dataclass(frozen=True)
class Comparison:
    """One case, or one device of it: bytes by the formulas beside bytes by llama.cpp."""

    model: str
    architecture: str
    kind: str
    case: str
    device: str
    """Empty where everything lies on the CPU."""
    is_marked: bool
    """Whether the formulas call cache or state an estimate themselves."""
    formula: Sizes
    truth: Sizes
    command: str
    compute_range: tuple[int, int]
    """The bounds that the planner itself prints for the compute buffers."""

    def error(self, term: str) -> int:
        """Bytes that the formula is too high; negative where it is too low."""
        return self.formula[term] - self.truth[term]

    def share(self, term: str) -> float:
        """The error as a share of the truth."""
        return self.error(term) / max(self.truth[term], 1)

    @property
    def is_in_range(self) -> bool:
        """Whether llama.cpp's compute buffers lie in the range that the planner prints."""
        low, high = self.compute_range
        return low <= self.truth["compute"] <= high

    def meets(self, term: str) -> bool:
        """Whether a term is as near as its goal asks; a GPU's rows are padded, so 1 MiB there."""
        if term in ("kv", "state", "memory"):
            return abs(self.error(term)) <= (MIB if self.device else 0)
        share, nbytes = (0.0, WEIGHTS_GOAL)
        if term != "weights":
            share, nbytes = COMPUTE_GOALS[self.kind] if term == "compute" else TOTAL_GOAL
        return abs(self.error(term)) <= max(share * self.truth[term], nbytes)


def comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """The cases on the CPU where both sides have figures."""
    return [comparison_of(row) for row in rows if _is_compared(row) and not row["n_gpus"]]


def device_comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """Each device of the cases with stand-in GPUs where both sides have figures."""
    return [
        c for row in rows if _is_compared(row) and row["n_gpus"] for c in device_comparisons_of(row)
    ]


def _is_compared(row: Row) -> bool:
    return "truth" in row and not errors_of(row)


def comparison_of(row: Row) -> Comparison:
    """Both sides of a row in the same terms.

    The state is logged with two decimals of a MiB, unlike the cache. If both exist, their sum is
    exact, and the state is the formula's if it rounds to the same value.
    """
    formula, truth = part_of(row, "formula"), part_of(row, "truth")
    sizes = _by_device(truth)["CPU"]
    state = _whole(truth["state_logged"])
    if abs(_whole(formula["state"]) - state) <= ROUNDING_BYTES:
        state = _whole(formula["state"])
    state = state if truth["kv_logged"] else sizes["memory"]
    measured = {
        "weights": sizes["weights"],
        "kv": sizes["memory"] - state,
        "state": state,
        "compute": sizes["compute"],
    }
    planned = {name: _whole(formula[name]) for name in measured}
    return _with_total(row, "", planned, measured)


def device_comparisons_of(row: Row) -> Iterable[Comparison]:
    """Both sides of each device of a row."""
    planned = part_of(row, "formula")["devices"]
    measured = _by_device(part_of(row, "truth"))
    assert isinstance(planned, dict)
    for device, terms in planned.items():
        sizes = {name: _nbytes(terms, name) for name in ("weights", "compute")}
        sizes["memory"] = _nbytes(terms, "kv") + _nbytes(terms, "state")
        yield _with_total(row, device, sizes, measured[device])


def _with_total(row: Row, device: str, planned: Sizes, measured: Mapping[str, int]) -> Comparison:
    devices = part_of(row, "formula")["devices"]
    assert isinstance(devices, dict)
    sources = {
        terms[n]["source"] for terms in devices.values() for n in ("kv", "state") if n in terms
    }
    return Comparison(
        str(row["model"]), str(row["architecture"]), str(row["kind"]), str(row["case"]), device,
        "estimated" in sources,
        planned | {"total": sum(planned.values())},
        dict(measured) | {"total": sum(measured.values())},
        str(row["command"]),
        _compute_range(devices[device] if device else devices["CPU"]),
    )  # fmt: skip


def _compute_range(terms: Mapping[str, Mapping[str, object]]) -> tuple[int, int]:
    term = terms.get("compute", {"nbytes": 0})
    low, high = (term.get(name) for name in ("low_bytes", "high_bytes"))
    nbytes = term["nbytes"]
    return _whole(nbytes if low is None else low), _whole(nbytes if high is None else high)


def _by_device(truth: Row) -> dict[str, Sizes]:
    """llama.cpp's bytes by the planner's devices; output rows lie with the host."""
    found: dict[str, Sizes] = defaultdict(lambda: {"weights": 0, "compute": 0, "memory": 0})
    buffers = truth["buffers"]
    assert isinstance(buffers, dict)
    for name, sizes in buffers.items():
        device = found[f"GPU {name[3:]}" if name[3:].isdigit() else "CPU"]
        device["weights"] += sizes["model"]
        device["memory"] += sizes["context"]
        device["compute"] += sizes["compute"]
    found["CPU"]["compute"] += _whole(truth["output_grown"])
    return found


def _nbytes(terms: Mapping[str, Mapping[str, object]], name: str) -> int:
    return _whole(terms[name]["nbytes"]) if name in terms else 0


def _whole(value: object) -> int:
    assert isinstance(value, int)
    return value


def refusals(rows: Iterable[Row]) -> tuple[int, list[Row]]:
    """The number of cases that both sides refuse, and the rows that only one does."""
    refused = [(row, errors_of(row)) for row in rows if "truth" in row and errors_of(row)]
    both = sum(len(sides) == 2 for _, sides in refused)
    return both, [row for row, sides in refused if len(sides) == 1]


def errors_of(row: Row) -> list[str]:
    """The sides that refuse a case."""
    return [name for name in ("formula", "truth") if "error" in part_of(row, name)]


def refusal(row: Row) -> str:
    """Report which side alone refuses a case, and why."""
    side = errors_of(row)[0]
    who = {"formula": "the planner", "truth": "llama.cpp"}[side]
    return f"{row['model']}, {row['case']}: {who} alone refuses: {part_of(row, side)['error']}"


def part_of(row: Row, name: str) -> Row:
    """One side of a row."""
    part = row[name]
    assert isinstance(part, dict)
    return part


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0
