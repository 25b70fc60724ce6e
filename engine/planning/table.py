"""The cost of other KV types and contexts, around a plan."""

from dataclasses import dataclass, replace

from engine.configuration import Configuration, KVTypeName
from engine.errors import PresetError
from engine.memory.estimate import Estimator, with_n_ctx
from engine.planning.planner import Plan, Setup, Verdict, verdict_of

TYPES: tuple[KVTypeName, ...] = ("f16", "q8_0", "q4_0")
STEPS = (
    512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of the table; no bytes and no verdict where llama.cpp refuses it."""

    total_bytes: int | None
    verdict: Verdict | None = None
    is_current: bool = False

    @property
    def fits(self) -> bool:
        """Whether every device keeps the margin free."""
        return self.verdict is Verdict.FITS


@dataclass(frozen=True, slots=True)
class Row:
    """One pair of types."""

    type_k: KVTypeName
    type_v: KVTypeName
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        """The types, one name where they are the same."""
        same = self.type_k == self.type_v
        return self.type_k if same else f"{self.type_k}/{self.type_v}"


@dataclass(frozen=True, slots=True)
class CostTable:
    """Rows of KV types, columns of contexts."""

    contexts: tuple[int, ...]
    rows: tuple[Row, ...]

    @property
    def current(self) -> tuple[int, int]:
        """Row and column of the plan itself."""
        return next(
            (y, x)
            for y, row in enumerate(self.rows)
            for x, cell in enumerate(row.cells)
            if cell.is_current
        )

    def setup_at(self, setup: Setup, y: int, x: int) -> Setup:
        """A setup with the types and the context of a cell."""
        row = self.rows[y]
        typed = replace(setup.configuration, type_k=row.type_k, type_v=row.type_v)
        return setup.with_configuration(with_n_ctx(typed, self.contexts[x]))


def cost_table(
    plan: Plan, cost: Estimator, n_columns: int, *, shown: tuple[int, ...] = ()
) -> CostTable:
    """What other types and contexts would cost, the plan's own among them.

    Args:
        plan: In the middle, where there is room on both sides.
        cost: Of other configurations.
        n_columns: Contexts.
        shown: The contexts of the table before, which stay while the plan is among them.
    """
    now = plan.setup.configuration
    contexts = _contexts(now.n_ctx, plan.model.architecture.n_ctx_train, n_columns, shown)
    pairs: list[tuple[KVTypeName, KVTypeName]] = [(name, name) for name in TYPES]
    if (now.type_k, now.type_v) not in pairs:
        pairs.insert(0, (now.type_k, now.type_v))
    rows = []
    for type_k, type_v in pairs:
        typed = replace(now, type_k=type_k, type_v=type_v)
        cells = tuple(_cell(with_n_ctx(typed, n), plan, cost) for n in contexts)
        rows.append(Row(type_k, type_v, cells))
    return CostTable(contexts, tuple(rows))


def _contexts(
    n_ctx: int, n_ctx_train: int, n_columns: int, shown: tuple[int, ...]
) -> tuple[int, ...]:
    """The columns around a context: powers of two up to training, and the context itself."""
    steps = sorted({n_ctx, n_ctx_train, *(n for n in STEPS if n < n_ctx_train)})
    index = steps.index(n_ctx)
    first = min(max(index - n_columns // 2, 0), max(len(steps) - n_columns, 0))
    if len(shown) == n_columns and shown[0] in steps:
        before = steps.index(shown[0])
        is_inside = before < index < before + n_columns - 1
        if tuple(steps[before : before + n_columns]) == shown and is_inside:
            first = before
    return tuple(steps[first : first + n_columns])


def _cell(configuration: Configuration, plan: Plan, cost: Estimator) -> Cell:
    margin = plan.setup.margin_bytes
    if configuration == plan.setup.configuration:
        # The plan's own numbers may have been measured.
        return Cell(plan.estimate.total_bytes, verdict_of(plan.estimate, margin), is_current=True)
    try:
        estimate = cost(configuration)
    except PresetError:
        return Cell(None)
    return Cell(estimate.total_bytes, verdict_of(estimate, margin))
