"""The table of KV types and contexts: every verdict has a sign and a colour."""

from app.planning.table import Cell, CostTable
from app.planning.verdict import Verdict
from app.render import format as fmt
from app.render.lines import Line, Run
from app.render.plan_terms import VERDICT_SIGNS

CELL_WIDTH = 8
LABEL_WIDTH = 10
MAX_COLUMNS = 10
LEGEND = "✓ fits · ! tight · ✗ too large · [ ] plan"


def n_columns(width: int) -> int:
    """How many contexts have room beside the widest label."""
    return max(min((width - LABEL_WIDTH) // CELL_WIDTH, MAX_COLUMNS), 1)


def table_lines(table: CostTable) -> list[Line]:
    """A row of contexts, the totals, and what the signs say; brackets are round the plan's own."""
    head = "".join(f"{fmt.context_size(n):>{CELL_WIDTH - 1}} " for n in table.contexts)
    lines: list[Line] = [(Run(f"{'':<{LABEL_WIDTH}}"), Run(head.rstrip(), "muted"))]
    for row in table.rows:
        label = Run(f"{row.label:<{LABEL_WIDTH}}", "muted")
        lines.append((label, *(cell_run(cell) for cell in row.cells)))
    return [*lines, (Run(LEGEND, "muted"),)]


def cell_run(cell: Cell) -> Run:
    """A cell of eight characters."""
    if cell.total_bytes is None or cell.verdict is None:
        return Run(f"{fmt.NO_VALUE:>{CELL_WIDTH - 1}} ", "muted")
    sign = VERDICT_SIGNS[cell.verdict]
    text = f"{sign.text}{fmt.short_nbytes(cell.total_bytes)}"
    if cell.is_current:
        return Run(f"{f'[{text}]':>{CELL_WIDTH}}", f"strong {sign.style}")
    style = "" if cell.verdict is Verdict.FITS else sign.style
    return Run(f"{text:>{CELL_WIDTH - 1}} ", style)
