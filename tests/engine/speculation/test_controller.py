from engine.speculation.controller import (
    BandController,
    Controller,
    FixedController,
    RoundOutcome,
)
from tests.contracts.controller import ControllerContract


class TestFixed(ControllerContract):
    drafts_at_once = True

    def make(self) -> Controller:
        return FixedController(4)


class TestBand(ControllerContract):
    drafts_at_once = True

    def make(self) -> Controller:
        return BandController(3, 8)


def play(controller: Controller, *, right: bool, rounds: int) -> None:
    for _ in range(rounds):
        n = controller.length
        accepted = n if right else 0
        controller.observe(RoundOutcome(n, n if right else min(n, 1), accepted, accepted + 1))


def test_fixed_stays() -> None:
    controller = FixedController(4)
    play(controller, right=False, rounds=50)
    assert controller.length == 4


def test_band_goes_up_to_its_limit_while_drafts_are_right() -> None:
    controller = BandController(2, 6)
    play(controller, right=True, rounds=100)
    assert controller.length == 6


def test_band_looks_at_a_fresh_window_after_each_step() -> None:
    controller = BandController(4, 8)
    lengths = []
    for _ in range(8):
        play(controller, right=True, rounds=1)
        lengths.append(controller.length)
    assert lengths == [4, 4, 4, 5, 5, 5, 5, 6]


def test_band_goes_down_and_turns_off_while_drafts_are_wrong() -> None:
    controller = BandController(3, 8)
    play(controller, right=False, rounds=60)
    assert controller.length == 0
    assert "off" in controller.reason


def test_band_keeps_its_length_between_the_borders() -> None:
    controller = BandController(4, 8)
    for _ in range(100):
        controller.observe(RoundOutcome(4, 3, 2, 3))
    assert controller.length == 4


def test_band_comes_back_when_a_trial_is_right() -> None:
    controller = BandController(3, 8)
    play(controller, right=False, rounds=60)
    for _ in range(500):
        if controller.length:
            break
        controller.observe(RoundOutcome(0, 0, 0, 1))
    assert controller.length == 1, "a trial"
    controller.observe(RoundOutcome(1, 1, 1, 2))
    play(controller, right=True, rounds=100)
    assert controller.length == 8


def test_band_tries_ever_more_rarely_while_trials_fail() -> None:
    controller = BandController(1, 8)
    n_trials = 0
    for _ in range(5000):
        n = controller.length
        n_trials += n
        controller.observe(RoundOutcome(n, n, 0, 1))
    assert n_trials < 40


def test_a_round_without_a_draft_does_not_count_as_a_miss() -> None:
    controller = BandController(3, 8)
    for _ in range(200):
        controller.observe(RoundOutcome(0, 0, 0, 1))
    assert controller.length == 3
