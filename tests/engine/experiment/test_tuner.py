"""What is found on machines whose speeds are known, and that it ends in time on each."""

from dataclasses import replace

import pytest

from engine.configuration import Configuration
from engine.experiment.timing import EngineDiedError, Ran, Work
from engine.experiment.tuner import Outcome, TuningError
from tests.engine.experiment.fake_machine import (
    START,
    FakeMachine,
    Recorded,
    fast_without_flash,
    made_tuner,
    result,
    tuned,
)


def fast_with_two(configuration: Configuration, workload: str) -> float:
    """Two threads are best, and flash attention costs."""
    if workload == "prompt":
        return fast_without_flash(configuration, workload)
    gain = 1.08 if configuration.flash_attention == "off" else 1.0
    return gain * {1: 0.6, 2: 1.3, 3: 1.1, 4: 1.0}[configuration.n_threads or 4]


def chosen(outcome: Outcome) -> list[str]:
    return [f"{each.setting} {each.label}" for each in outcome.compared if each.verdict == "chosen"]


def test_the_known_best_is_found_setting_by_setting() -> None:
    outcome = tuned(FakeMachine(fast_with_two), minutes=3)
    assert outcome.changes == {"n_threads": 2, "flash_attention": "off"}
    three = result(outcome, "decode threads", "3 threads")
    assert (three.verdict, three.reason) == ("faster", "2 threads is even faster")
    gain = result(outcome, "flash attention", "off").gain
    assert gain.median == pytest.approx(1.08, abs=0.01)
    assert outcome.is_complete
    assert outcome.start_tps["near"] == pytest.approx(60, rel=0.02)
    assert outcome.chosen_tps["near"] == pytest.approx(60 * 1.3 * 1.08, rel=0.02)
    assert outcome.chosen_tps["deep"] == pytest.approx(50 * 1.3 * 1.08, rel=0.02)


def test_where_nothing_is_faster_nothing_is_taken_and_the_start_is_the_result() -> None:
    outcome = tuned(FakeMachine(), minutes=3)
    assert outcome.changes == {}
    assert outcome.chosen_tps == outcome.start_tps
    assert {each.verdict for each in outcome.compared} == {"no gain"}


@pytest.mark.parametrize("seed", range(40))
def test_noise_of_a_tenth_is_never_taken_as_a_gain(seed: int) -> None:
    jumping = FakeMachine(jump=0.1, noise=0.02, seed=seed)
    assert chosen(tuned(jumping, minutes=10)) == []
    rough = FakeMachine(noise=0.1, drift=0.1, seed=seed)
    assert chosen(tuned(rough, minutes=10)) == []


@pytest.mark.parametrize("slowness", [0.1, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("minutes", [0.5, 1.0, 3.0])
def test_it_ends_in_its_time_on_any_machine_with_a_result_or_a_reason(
    slowness: float, minutes: float
) -> None:
    machine = FakeMachine(fast_with_two, slowness=slowness)
    recorded = Recorded()
    tuner = made_tuner(machine, recorded, minutes=minutes)
    if slowness < 300:
        tuner.run()
        assert set(recorded.saved[0].chosen_tps) == {"near", "prompt"}
    else:
        with pytest.raises(TuningError, match="raise --minutes"):
            tuner.run()
        assert not recorded.saved
    assert machine.now_s <= 60 * minutes


def test_a_hopeless_candidate_takes_little_of_the_time() -> None:
    def hopeless(configuration: Configuration, _: str) -> float:
        return 0.001 if configuration.flash_attention == "off" else 1.0

    outcome = tuned(FakeMachine(hopeless), minutes=3)
    off = result(outcome, "flash attention", "off")
    assert off.verdict == "no gain"
    assert off.gain.n_blocks == 3
    assert outcome.is_complete


def test_without_time_a_candidate_is_neither_faster_nor_slower() -> None:
    """Unknown noise is no verdict."""
    outcome = tuned(FakeMachine(fast_without_flash, slowness=3.0), minutes=0.5)
    open_ones = [each for each in outcome.compared if each.verdict == "undecided"]
    assert open_ones
    assert not outcome.is_complete
    assert all(each.gain is None or each.gain.n_blocks < 16 for each in open_ones)
    assert "flash_attention" not in outcome.changes


def test_ctrl_c_ends_it_with_what_was_found() -> None:
    whole = FakeMachine(fast_with_two)
    recorded = Recorded()
    made_tuner(whole, recorded).run()
    first_ubatch = next(n for n, each in enumerate(recorded.steps) if each.startswith("ubatch"))
    n_runs = 4 * first_ubatch + 4  # every block before is four runs
    machine = FakeMachine(fast_with_two, is_interrupted_at=n_runs)
    tuner = made_tuner(machine)
    outcome = tuner.run()
    assert tuner.was_stopped
    assert outcome.changes == {"n_threads": 2, "flash_attention": "off"}
    assert not outcome.is_complete
    assert machine.n_runs == n_runs, "nothing is measured after it"


def test_what_was_found_is_saved_as_soon_as_it_is_found() -> None:
    recorded = Recorded()
    made_tuner(FakeMachine(fast_with_two), recorded).run()
    assert recorded.saved[0].compared == ()
    assert recorded.saved[1].changes == {"n_threads": 2}
    assert recorded.saved[-1].changes == {"n_threads": 2, "flash_attention": "off"}


def test_a_setting_that_fails_is_recorded_and_the_rest_goes_on() -> None:
    failing = {"no such kernel": lambda now: now.flash_attention == "off"}
    outcome = tuned(FakeMachine(fast_with_two, failing=failing))
    off = result(outcome, "flash attention", "off")
    assert (off.verdict, off.reason) == ("failed", "no such kernel")
    assert outcome.changes == {"n_threads": 2}


def test_a_start_that_fails_is_an_error() -> None:
    failing = {"llama.cpp could not load it": lambda _: True}
    with pytest.raises(TuningError, match="could not load it"):
        tuned(FakeMachine(failing=failing))


def test_a_build_that_crashes_with_repacked_weights_is_measured_without() -> None:
    class Crashing(FakeMachine):
        def run(
            self, configuration: Configuration, work: Work, limit_s: float, until_s: float
        ) -> Ran:
            if configuration.use_extra_buffers:
                raise EngineDiedError("SIGSEGV")
            return super().run(configuration, work, limit_s, until_s)

    assert tuned(Crashing()).chosen_tps["near"] > 0


def starved(configuration: Configuration, workload: str) -> float:
    """Beside other programs fewer threads are faster."""
    return 1.0 if workload != "near" else 4.0 / (configuration.n_threads or 4)


def test_beside_other_programs_threads_are_left_to_kvchat_where_it_chooses_them() -> None:
    outcome = tuned(FakeMachine(starved, n_others=2.0), minutes=3)
    one = result(outcome, "decode threads", "1 thread")
    assert (one.verdict, one.gain) == ("not tried", None)
    assert "other programs used 2.0 of 4 cores" in one.reason
    assert outcome.is_busy
    assert "n_threads" not in outcome.changes
    named = replace(START, n_threads=4, n_threads_batch=4)
    outcome = tuned(FakeMachine(starved, n_others=2.0), start=named, minutes=3)
    assert outcome.changes == {"n_threads": 1}
