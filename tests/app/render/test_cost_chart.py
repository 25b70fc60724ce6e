"""The chart of what batches cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.render.charts import cost_chart
from app.render.lines import plain, width_of
from engine.events import CostsMeasured

CURVE = (1.0, 1.5, *(2.0 + 0.1 * i for i in range(15)))
COSTS = CostsMeasured(((1, 1.0), (2, 1.5), (4, 2.1)), 0.01, CURVE)


@given(
    st.integers(0, 90),
    st.integers(0, 12),
    st.sampled_from(["block", "braille", "ascii"]),
    st.none() | st.integers(1, 17),
)
def test_a_chart_keeps_to_its_width_and_height(
    width: int, height: int, symbols: str, chosen: int | None
) -> None:
    lines = cost_chart(COSTS, width, height, symbols, chosen=chosen)  # type: ignore[arg-type]
    assert len(lines) <= height
    assert all(width_of(line) <= width for line in lines[1:])


@pytest.mark.parametrize("symbols", ["block", "braille", "ascii"])
def test_guessed_numbers_differ_from_measured_ones_in_shape_and_in_style(symbols: str) -> None:
    lines = cost_chart(COSTS, 50, 6, symbols)  # type: ignore[arg-type]
    marks: dict[str, set[str]] = {"history": set(), "bar-free": set()}
    for line in lines:
        for run in line:
            if run.style in marks:
                marks[run.style] |= set(run.text.strip())
    assert marks["history"]
    assert marks["bar-free"]
    assert not marks["history"] & marks["bar-free"]


def test_a_bar_twice_as_high_costs_twice_as_much() -> None:
    costs = CostsMeasured(((1, 1.0), (2, 2.0)), 0.01, (1.0, 2.0))
    lines = [plain(line) for line in cost_chart(costs, 20, 6)][1:-1]
    assert sum("█" in line[5:8] for line in lines) * 2 == sum("█" in line[8:] for line in lines)


def test_the_batch_that_comes_next_is_marked_under_its_bar() -> None:
    axis = plain(cost_chart(COSTS, 50, 6, chosen=5)[-1])
    assert axis.startswith("   n 1")
    assert "▲" in axis
    assert "5" not in axis
    assert axis.index("▲") == 5 + 4 * 3


def test_nothing_is_drawn_before_something_was_measured() -> None:
    assert plain(cost_chart(None, 50, 6)[0]) == "no batch was measured yet"
