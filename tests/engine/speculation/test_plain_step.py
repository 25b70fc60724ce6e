import pytest

from engine.speculation.cost import PlainStep


def measured(*seconds: float) -> PlainStep:
    step = PlainStep()
    for each in seconds:
        step.add(each)
    return step


def test_it_is_the_median_of_the_last_steps_and_unknown_before_one() -> None:
    assert PlainStep().seconds is None
    assert measured(0.010, 0.011, 0.5).seconds == 0.011


@pytest.mark.parametrize("slower", [1.5, 2.5, 20.0])
def test_a_machine_that_becomes_slower_is_believed_from_the_second_step_on(slower: float) -> None:
    step = measured(0.010, 0.010, 0.010)
    for _ in range(20):
        step.infer(0.010)
    for _ in range(5):
        step.add(slower * 0.010)
    assert step.seconds == pytest.approx(slower * 0.010)


def test_one_slow_step_between_drafts_is_a_stall() -> None:
    step = measured(0.010)
    step.infer(0.010)
    assert not step.add(0.3)
    assert step.seconds == pytest.approx(0.010)
    assert step.add(0.011)
    assert not step._was_refused


def test_the_spread_is_how_far_most_steps_were_from_what_was_expected() -> None:
    assert measured(0.010, 0.010).spread is None
    assert measured(*[0.010] * 3).spread == pytest.approx(0.0)
    calm = measured(*[0.010, 0.0102] * 10).spread
    noisy = measured(*[0.010, 0.018] * 10).spread
    assert calm is not None
    assert noisy is not None
    assert calm < 0.03 < 0.3 < noisy


def test_one_stall_in_fifteen_steps_is_not_the_spread() -> None:
    spread = measured(*[0.010] * 8, 0.4, *[0.010] * 6).spread
    assert spread == pytest.approx(0.0)
