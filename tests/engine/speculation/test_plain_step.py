import pytest

from engine.speculation.cost import PlainStep


def test_a_step_behind_a_batch_counts_as_one_behind_another() -> None:
    step = PlainStep()
    step.add(0.030, n_rows=4, switching=0.2)
    assert step.seconds is None
    step.add(0.012, switching=0.2)
    assert step.seconds == pytest.approx(0.010)
    step.add(0.010, switching=0.2)
    assert step.seconds == pytest.approx(0.010)
