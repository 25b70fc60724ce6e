"""The cost of other KV types and contexts, around a plan."""

from dataclasses import dataclass, replace

from app.planning.plan import Plan
from engine.configuration import Configuration, KVTypeName
from engine.errors import PresetError
from engine.memory.fit import Estimator, with_n_ctx

TYPES: tuple[KVTypeName, ...] = ("f16", "q8_0", "q4_0")
STEPS = (
    512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration of the table; no bytes where llama.cpp refuses it."""

    total_bytes: int | None
    fits: bool = False
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One pair of types."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Rows of KV types, columns of contexts."""

    contexts: tuple[int, ...]
    rows: tuple[Row, ...]


def cost_table(plan: Plan, cost: Estimator, n_columns: int) -> CostTable:
    """Give what other types and contexts would cost, the plan's own among them."""
    now = plan.setup.configuration
    contexts = _contexts(now.n_ctx, plan.model.architecture.n_ctx_train, n_columns)
    pairs = [(name, name) for name in TYPES]
    if (now.type_k, now.type_v) not in pairs:
        pairs.insert(0, (now.type_k, now.type_v))
    rows = []
    for type_k, type_v in pairs:
        typed = replace(now, type_k=type_k, type_v=type_v)
        cells = tuple(_cell(with_n_ctx(typed, n), plan, cost) for n in contexts)
        rows.append(Row(type_k if type_k == type_v else f"{type_k}/{type_v}", cells))
    return CostTable(contexts, tuple(rows))


def _contexts(n_ctx: int, n_ctx_train: int, n_columns: int) -> tuple[int, ...]:
    """Choose columns around a context: powers of two up to training, and the context itself."""
    steps = sorted({n_ctx, n_ctx_train, *(n for n in STEPS if n < n_ctx_train)})
    place = steps.index(n_ctx)
    first = min(max(place - n_columns // 2, 0), max(len(steps) - n_columns, 0))
    return tuple(steps[first : first + n_columns])


def _cell(configuration: Configuration, plan: Plan, cost: Estimator) -> Cell:
    if configuration == plan.setup.configuration:
        # The plan's own numbers may have been measured.
        return Cell(plan.estimate.total_bytes, plan.fits, is_current=True)
    try:
        estimate = cost(configuration)
    except PresetError:
        return Cell(None)
    return Cell(estimate.total_bytes, estimate.fits(plan.setup.margin_bytes))
