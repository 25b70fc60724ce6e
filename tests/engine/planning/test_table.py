"""The table of KV types and contexts."""

from dataclasses import replace

from engine.planning.table import cost_table
from tests.engine.planning.models import DENSE, planned


def test_a_cell_becomes_the_plan_that_it_shows() -> None:
    plan, planner = planned(DENSE, 12)
    table = cost_table(plan, planner.estimator(plan.setup), 6)
    for y, row in enumerate(table.rows):
        for x, cell in enumerate(row.cells):
            after = planner.plan(table.setup_at(plan.setup, y, x))
            assert after.estimate.total_bytes == cell.total_bytes
            assert cell.is_plan == ((y, x) == table.current)


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


def test_cache_kinds_of_torch_are_no_rows_for_llama_server() -> None:
    plan, planner = planned(DENSE, 12)
    table = cost_table(
        replace(plan, setup=plan.setup.with_values(backend="torch", kv_cache="nf4")),
        planner.estimator(plan.setup),
        6,
    )
    assert [row for row in table.rows if row.kind is not None] == []
