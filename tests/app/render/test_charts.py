from hypothesis import given
from hypothesis import strategies as st

from app.render.charts import bar, history, ribbon
from app.render.lines import plain, width_of


@given(st.floats(-1, 2), st.integers(0, 40), st.sampled_from(["block", "braille", "ascii"]))
def test_a_bar_always_has_its_width(fraction: float, width: int, symbols: str) -> None:
    assert width_of(bar(fraction, width, symbols)) == width  # type: ignore[arg-type]


def test_a_bar_shows_that_a_little_is_used() -> None:
    assert plain(bar(0.0001, 10, "block"))[0] == "▏"


def test_a_history_has_gaps_where_nothing_was_measured() -> None:
    assert plain(history([None, 0.0, 0.5, 1.0], 10, "block", top=1.0)) == " ▁▅█"


def test_a_history_shows_the_newest_values() -> None:
    assert plain(history([0.0, 1.0, 1.0], 2, "block", top=1.0)) == "██"


def test_a_ribbon_differs_in_shape_and_in_style() -> None:
    runs = ribbon([True, True, False], 10, "block")
    assert [(run.text, run.style) for run in runs] == [("▪▪", "accepted"), ("✗", "refuted")]
    assert plain(ribbon([True, False], 10, "ascii")) == "+x"
