"""The table of KV types and contexts."""

from app.render.lines import plain
from app.render.plan import cell_run, table_lines
from engine.planning.comparison import cost_table
from engine.planning.verdict import FitVerdict
from tests.engine.planning.models import DENSE, planned


def test_verdicts_differ_in_sign_and_in_colour() -> None:
    plan, planner = planned(DENSE, 6, n_ctx=4096)
    table = cost_table(plan, planner.estimator(plan.setup), 8)
    cells = [cell for row in table.rows for cell in row.cells]
    assert {cell.verdict for cell in cells} == set(FitVerdict)
    runs = {cell.verdict: cell_run(cell) for cell in cells if not cell.is_current}
    signs = {verdict: run.text.strip()[0] for verdict, run in runs.items()}
    assert signs == {FitVerdict.FITS: "✓", FitVerdict.TIGHT: "!", FitVerdict.NO: "✗"}
    assert len({run.style for run in runs.values()}) == 3


def test_a_cell_becomes_the_plan_that_it_shows() -> None:
    plan, planner = planned(DENSE, 12)
    table = cost_table(plan, planner.estimator(plan.setup), 6)
    for y, row in enumerate(table.rows):
        for x, cell in enumerate(row.cells):
            after = planner.plan(table.setup_at(plan.setup, y, x))
            assert after.estimate.total_bytes == cell.total_bytes
            assert cell.is_current == ((y, x) == table.current)


def test_columns_stay_while_the_plan_moves_among_them() -> None:
    plan, planner = planned(DENSE, 12)
    cost = planner.estimator(plan.setup)
    before = cost_table(plan, cost, 6)
    y, x = before.current
    moved = planner.plan(before.setup_at(plan.setup, y, x + 1))
    after = cost_table(moved, cost, 6, shown=before.contexts)
    assert after.contexts == before.contexts
    assert after.current == (y, x + 1)
    edge = planner.plan(before.setup_at(plan.setup, y, len(before.contexts) - 1))
    assert cost_table(edge, cost, 6, shown=before.contexts).contexts != before.contexts


def test_the_plan_is_in_brackets_and_the_signs_are_explained() -> None:
    plan, planner = planned(DENSE, 12)
    text = [plain(line) for line in table_lines(cost_table(plan, planner.estimator(plan.setup), 5))]
    assert sum("[" in line for line in text[:-2]) == 1
    assert "! tight" in text[-2]
    assert "? unknown" in text[-1]
    assert all(line.endswith("guess") for line in text[1:-2])
