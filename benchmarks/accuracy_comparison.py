"""One case of the accuracy table: what the formulas say beside what llama.cpp says, in bytes."""

from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1024**2
Row = dict[str, object]

COMPUTE_GOALS = {
    "dense": (0.15, 32 * MIB),
    "experts": (0.25, 128 * MIB),
    "hybrid": (0.25, 128 * MIB),
}
"""Share and bytes of the compute buffers that a formula may be off by, whichever is more."""
TOTAL_GOAL = (0.05, 64 * MIB)
LOW_GOAL = 0.05
WEIGHTS_GOAL = MIB


@dataclass(frozen=True)
class Comparison:
    """One case: bytes by the formulas beside bytes by llama.cpp."""

    model: str
    architecture: str
    kind: str
    case: str
    is_marked: bool
    """Whether the formulas call cache or state an estimate themselves."""
    formula: dict[str, int]
    truth: dict[str, int]

    def error(self, term: str) -> int:
        """Bytes that the formula is too high; negative where it is too low."""
        return self.formula[term] - self.truth[term]

    def share(self, term: str) -> float:
        """The error as a share of the truth."""
        return self.error(term) / max(self.truth[term], 1)

    def meets(self, term: str) -> bool:
        """Whether a term is as near as its goal asks."""
        goals = {"compute": COMPUTE_GOALS[self.kind], "total": TOTAL_GOAL}
        share, nbytes = goals.get(term, (0.0, WEIGHTS_GOAL if term == "weights" else 0))
        return abs(self.error(term)) <= max(share * self.truth[term], nbytes)


def comparisons(rows: Iterable[Row]) -> list[Comparison]:
    """Give the rows where both sides have figures."""
    return [comparison(row) for row in rows if "truth" in row and not errors_of(row)]


def comparison(row: Row) -> Comparison:
    """Give both sides of a row in the same terms.

    State is logged with two decimals of a MiB and is told apart from the cache by that: where both
    exist, their sum is exact and the state is taken as the formula's if it rounds to the same.
    """
    formula, truth = part_of(row, "formula"), part_of(row, "truth")
    buffers = truth["buffers"].values()  # type: ignore[attr-defined]
    context = sum(sizes["context"] for sizes in buffers)
    state = int(truth["state_logged"])  # type: ignore[call-overload]
    if abs(int(formula["state"]) - state) <= 5300:  # type: ignore[call-overload]
        state = int(formula["state"])  # type: ignore[call-overload]
    if not truth["kv_logged"]:
        state = context
    compute = sum(sizes["compute"] for sizes in buffers) + int(truth["output_grown"])  # type: ignore[call-overload]
    weights = sum(sizes["model"] for sizes in buffers)
    measured = {"weights": weights, "kv": context - state, "state": state, "compute": compute}
    planned = {name: int(formula[name]) for name in measured}  # type: ignore[call-overload]
    sources = formula["sources"]
    assert isinstance(sources, dict)
    return Comparison(
        str(row["model"]), str(row["architecture"]), str(row["kind"]), str(row["case"]),
        "estimated" in (sources["kv"], sources["state"]),
        planned | {"total": sum(planned.values())},
        measured | {"total": sum(measured.values())},
    )  # fmt: skip


def part_of(row: Row, name: str) -> dict[str, object]:
    part = row[name]
    assert isinstance(part, dict)
    return part


def errors_of(row: Row) -> list[str]:
    return [name for name in ("formula", "truth") if "error" in part_of(row, name)]


def refusals(rows: Iterable[Row]) -> tuple[int, list[Row]]:
    """Give the number of cases that both sides refuse, and the rows that only one does."""
    refused = [(row, errors_of(row)) for row in rows if "truth" in row and errors_of(row)]
    both = sum(len(sides) == 2 for _, sides in refused)
    return both, [row for row, sides in refused if len(sides) == 1]
