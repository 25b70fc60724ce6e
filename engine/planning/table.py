"""The memory of other K/V types and contexts, as a table."""

from dataclasses import dataclass

from engine.configuration import Configuration, KVTypeName, KVTypes
from engine.errors import PresetError
from engine.memory.estimate import Estimator, with_n_ctx
from engine.memory.kv_cache import with_types
from engine.planning.planner import Plan, Setup
from engine.planning.verdict import FitVerdict, verdict_of
from engine.policy.known import Standing

TYPES: tuple[KVTypeName, ...] = ("f16", "q8_0", "q4_0")
STEPS = tuple(512 << n for n in range(12))


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of the table; no bytes and no verdict where llama.cpp refuses it."""

    total_bytes: int | None
    verdict: FitVerdict | None = None
    is_plan: bool = False


@dataclass(frozen=True, slots=True)
class CacheTypeRow:
    """One pair of K/V types, or a cache type of the torch backend."""

    types: KVTypes
    cells: tuple[Cell, ...]
    quality: Standing
    """Measured quality of the types on the model."""
    kind: str | None = None

    @property
    def label(self) -> str:
        """The name of the cache type, or of both K/V types."""
        return self.kind or str(self.types)


@dataclass(frozen=True, slots=True)
class CostTable:
    """Rows of KV types, columns of contexts."""

    contexts: tuple[int, ...]
    rows: tuple[CacheTypeRow, ...]
    current: tuple[int, int]
    """Row and column of the plan itself."""

    def setup_at(self, setup: Setup, y: int, x: int) -> Setup:
        """A setup with the types and the context of a cell."""
        typed = with_types(setup.configuration, self.rows[y].types)
        return setup.with_configuration(with_n_ctx(typed, self.contexts[x]))


def cost_table(
    plan: Plan, cost: Estimator, n_columns: int, *, shown: tuple[int, ...] = ()
) -> CostTable:
    """Estimate other types and contexts, with the plan's own in the middle if possible.

    `shown` are the contexts of the previous table, which stay while the plan's is one of them.
    """
    now = plan.setup.configuration
    contexts = _contexts(now.n_ctx, plan.model.architecture.n_ctx_train, n_columns, shown)
    pairs = [KVTypes(name, name) for name in TYPES]
    kind = plan.torch_cache
    if kind is not None:
        pairs = [now.kv_types]
    elif now.kv_types not in pairs:
        pairs.insert(0, now.kv_types)
    rows = []
    for pair in pairs:
        typed = with_types(now, pair)
        cells = tuple(_cell(with_n_ctx(typed, n), plan, cost) for n in contexts)
        quality = plan.known.standing(pair) if kind is None else plan.quality
        rows.append(CacheTypeRow(pair, cells, quality, kind))
    current = pairs.index(now.kv_types), contexts.index(now.n_ctx)
    return CostTable(contexts, tuple(rows), current)


def _contexts(
    n_ctx: int, n_ctx_train: int, n_columns: int, shown: tuple[int, ...]
) -> tuple[int, ...]:
    """The columns around a context: powers of two up to training, and the context itself."""
    steps = sorted({n_ctx, n_ctx_train, *(n for n in STEPS if n < n_ctx_train)})
    if n_ctx in shown[1:-1] and len(shown) == n_columns and set(shown) <= set(steps):
        return shown
    first = min(max(steps.index(n_ctx) - n_columns // 2, 0), max(len(steps) - n_columns, 0))
    return tuple(steps[first : first + n_columns])


def _cell(configuration: Configuration, plan: Plan, cost: Estimator) -> Cell:
    margin = plan.setup.margin_bytes
    if configuration == plan.setup.configuration:
        # The plan's own numbers may have been measured.
        return Cell(plan.estimate.total_bytes, verdict_of(plan.estimate, margin), is_plan=True)
    try:
        estimate = cost(configuration)
    except PresetError:
        return Cell(None)
    return Cell(estimate.total_bytes, verdict_of(estimate, margin))
