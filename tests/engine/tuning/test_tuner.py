"""What is taken, what is not, and what becomes of failures, interruptions and too little time."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from engine.configuration import Configuration
from engine.tuning.gain import agree
from engine.tuning.outcome import TuningRecord
from engine.tuning.timer import VariantFailedError
from engine.tuning.trials import Scope, Variant, Workload
from engine.tuning.tuner import LEAST_WAIT_S, TuningError
from tests.engine.tuning.fake_machine import (
    CPU,
    START,
    FakeMachine,
    as_ever,
    made_tuner,
    told,
    tuned,
)


def quick_without_flash(configuration: Configuration, workload: str) -> float:
    """Writing gains a fifth behind many tokens, and reading loses a hundredth."""
    gain = {"near": 1.08, "deep": 1.2, "prompt": 0.99}[workload]
    is_off = configuration.flash_attention == "off"
    return as_ever(configuration, workload) * (gain if is_off else 1.0)


def test_what_is_quicker_is_taken_with_its_true_gain_and_its_cost() -> None:
    outcome = tuned(FakeMachine(quick_without_flash))
    flash = told(outcome, "flash attention", "off")
    assert flash.verdict == "taken"
    assert flash.parts["deep"].low <= 1.2 <= flash.parts["deep"].high
    assert "exact" in flash.cost
    assert outcome.changes == {"flash_attention": "off"}
    assert outcome.chosen == replace(START, flash_attention="off")
    assert outcome.total is not None
    assert outcome.total.low > 1.03
    assert outcome.chosen_tps["deep"] / outcome.start_tps["deep"] == pytest.approx(1.2, rel=0.02)
    assert outcome.is_complete


def test_slower_settings_are_dropped_soon_and_threads_stay_automatic() -> None:
    outcome = tuned(FakeMachine())
    assert outcome.changes == {}
    assert outcome.chosen.n_threads is None
    one = told(outcome, "threads while writing", "1 thread")
    assert (one.verdict, one.gain and one.gain.n_blocks) == ("slower", 1)
    assert outcome.total is None


def test_a_hopeless_candidate_costs_one_run() -> None:
    def with_one_thread(share: float) -> FakeMachine:
        def speed(configuration: Configuration, workload: str) -> float:
            return share if configuration.n_threads == 1 else as_ever(configuration, workload)

        return FakeMachine(speed, noise=0.0)

    crawling, slow = with_one_thread(0.05), with_one_thread(0.5)
    one = told(tuned(crawling), "threads while writing", "1 thread")
    assert one.gain is not None
    assert (one.verdict, one.gain.median) == ("slower", pytest.approx(0.05))
    tuned(slow)
    assert crawling.n_runs == slow.n_runs - 2


def test_a_candidate_that_hardly_moves_is_given_up_before_it_takes_all_the_time() -> None:
    def stuck(configuration: Configuration, workload: str) -> float:
        return (
            1e-5 if configuration.n_threads == 1 else quick_without_flash(configuration, workload)
        )

    machine = FakeMachine(stuck)
    outcome = tuned(machine)
    one = told(outcome, "threads while writing", "1 thread")
    assert one.verdict == "failed"
    assert "given up after" in one.reason
    assert outcome.changes == {"flash_attention": "off"}
    assert outcome.is_complete


def test_fewer_threads_are_taken_where_they_are_quicker() -> None:
    def crowded(configuration: Configuration, workload: str) -> float:
        return 1.4 if workload != "prompt" and configuration.n_threads == 3 else 1.0

    outcome = tuned(FakeMachine(crowded))
    assert outcome.changes == {"n_threads": 3}
    assert (outcome.chosen.n_threads, outcome.chosen.n_threads_batch) == (3, None)


def test_noise_alone_is_never_taken() -> None:
    def equal(configuration: Configuration, workload: str) -> float:
        return 1.0

    taken = [tuned(FakeMachine(equal, noise=0.05, seed=seed)).changes for seed in range(40)]
    assert taken == [{}] * 40


def test_a_machine_that_grows_slower_all_the_time_favours_nobody() -> None:
    steady = tuned(FakeMachine(quick_without_flash, noise=0.0))
    slowing = tuned(FakeMachine(quick_without_flash, noise=0.0, drift=0.02))
    assert slowing.changes == steady.changes
    assert slowing.noise.noise < 0.01
    one, two = slowing.total, steady.total
    assert one is not None
    assert two is not None
    assert one.median == pytest.approx(two.median, rel=0.01)


def test_of_two_quick_ones_the_quicker_is_taken() -> None:
    def unmapped(configuration: Configuration, workload: str) -> float:
        return {2: 1.2, 3: 1.5}.get(configuration.n_threads or 4, 1.0)

    outcome = tuned(FakeMachine(unmapped))
    assert outcome.changes["n_threads"] == 3
    two = told(outcome, "threads while writing", "2 threads")
    assert (two.verdict, two.reason) == ("quicker", "3 threads is quicker still")


def test_what_gains_alone_and_not_together_is_not_taken() -> None:
    def moody(configuration: Configuration, workload: str) -> float:
        return 1.2 if configuration.use_mmap is False and not machine.is_late else 1.0

    class Moody(FakeMachine):
        @property
        def is_late(self) -> bool:
            return any(variant.replica == 2 for variant in self.loaded)

    machine = Moody(moody)
    outcome = tuned(machine)
    assert outcome.changes == {}
    assert "together" in told(outcome, "weights", "read into memory").reason
    assert outcome.compared[-1].verdict == "within noise"
    assert (outcome.chosen, outcome.total) == (START, None)


class FailingMachine(FakeMachine):
    """A machine on which some runs fail, by engine, workload and number."""

    fails: Callable[[Variant, Workload, int], bool]

    def seconds(self, variant: Variant, workload: Workload, *, within_s: float) -> float:
        if self.fails(variant, workload, self.n_runs):
            self.n_runs += 1
            raise VariantFailedError(variant, "out of memory")
        return super().seconds(variant, workload, within_s=within_s)


def test_where_the_last_comparison_fails_nothing_is_taken_and_the_speeds_are_known() -> None:
    machine = FailingMachine(quick_without_flash)
    machine.fails = lambda variant, work, _: (
        variant.replica == 2
        and variant.configuration.flash_attention == "off"
        and work.name == "deep"
    )
    outcome = tuned(machine)
    assert outcome.compared[-1].verdict == "failed"
    assert outcome.changes == {}
    assert set(outcome.start_tps) == {"near", "prompt", "deep"}


def test_settings_that_fail_once_are_tried_again_and_twice_end_the_run() -> None:
    def is_of_now(variant: Variant) -> bool:
        now = variant.configuration
        return (now.flash_attention, now.n_threads, now.n_threads_batch) == ("auto", 4, 4)

    failed: list[int] = []

    def once(variant: Variant, work: Workload, n_runs: int) -> bool:
        if n_runs < 90 or failed or not is_of_now(variant):
            return False
        failed.append(n_runs)
        return True

    machine = FailingMachine(quick_without_flash)
    machine.fails = once
    outcome = tuned(machine)
    assert failed
    assert outcome.changes == {"flash_attention": "off"}
    assert not [each for each in outcome.compared if each.verdict == "failed"]
    broken = FailingMachine(quick_without_flash)
    broken.fails = lambda variant, work, n_runs: n_runs >= 90 and is_of_now(variant)
    with pytest.raises(TuningError, match="ran before fail now: out of memory"):
        tuned(broken)


def test_a_long_chat_is_read_once_for_two_rounds() -> None:
    machine = FakeMachine()
    for step in made_tuner(machine).run():
        if step.setting != "noise":
            break
    assert machine.n_deep_reads == 2 * 2


def test_a_gain_of_writing_that_reading_pays_for_is_not_taken() -> None:
    def repacked(configuration: Configuration, workload: str) -> float:
        if configuration.use_extra_buffers:
            return 1.0
        return 1.4 if workload == "near" else 0.8

    verdict = told(tuned(FakeMachine(repacked)), "repacked weights", "off")
    assert verdict.verdict == "within noise"
    assert "prompt becomes slower" in verdict.reason


def test_a_quicker_cache_type_is_told_and_not_taken() -> None:
    def small_cache(configuration: Configuration, workload: str) -> float:
        return 1.3 if configuration.type_k == "q8_0" else 1.0

    outcome = tuned(FakeMachine(small_cache))
    assert outcome.changes == {}
    assert told(outcome, "cache type", "q8_0").reason.startswith("it changes the text")


def test_a_candidate_that_fails_is_named_and_the_rest_goes_on() -> None:
    failing = {"the engine stopped: signal 9": lambda now: not now.use_extra_buffers}
    outcome = tuned(FakeMachine(quick_without_flash, failing=failing))
    failed = told(outcome, "repacked weights", "off")
    assert (failed.verdict, failed.reason) == ("failed", "the engine stopped: signal 9")
    assert outcome.changes == {"flash_attention": "off"}
    assert outcome.is_complete


def test_where_the_settings_of_now_fail_it_says_so() -> None:
    with pytest.raises(TuningError, match="settings of now cannot be measured: broken"):
        tuned(FakeMachine(failing={"broken": lambda now: True}))


@pytest.mark.parametrize("minutes", [0.7, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 3.0, 10.0])
def test_the_time_is_kept(minutes: float) -> None:
    machine = FakeMachine(quick_without_flash)
    outcome = tuned(machine, minutes=minutes)
    assert machine.now_s <= 60 * minutes + LEAST_WAIT_S
    assert outcome.spent_s == machine.now_s
    assert set(outcome.start_tps) == set(outcome.chosen_tps) == {"near", "prompt", "deep"}


def test_no_time_at_all_is_told() -> None:
    with pytest.raises(TuningError, match="--minutes"):
        tuned(FakeMachine(), minutes=0.05)


@pytest.mark.parametrize("n_runs", [3, 40, 90, 130, 200])
def test_what_was_interrupted_goes_on_where_it_was(n_runs: int) -> None:
    whole = FakeMachine(quick_without_flash, noise=0.0)
    expected = tuned(whole)
    record = TuningRecord()
    first = FakeMachine(quick_without_flash, noise=0.0, is_interrupted_at=n_runs)
    with pytest.raises(KeyboardInterrupt):
        tuned(first, record=record)
    second, record_s = FakeMachine(quick_without_flash, noise=0.0), record.spent_s
    assert record_s > 0.5 * first.now_s
    outcome = tuned(second, record=record)
    assert outcome.changes == expected.changes
    assert outcome.compared == expected.compared
    assert outcome.spent_s >= second.now_s + record_s
    assert (n_runs - 1) + second.n_runs - whole.n_runs in range(4)  # of the block that was lost


def test_what_is_done_is_not_measured_again() -> None:
    record = TuningRecord()
    once = tuned(FakeMachine(quick_without_flash), record=record)
    machine = FakeMachine(quick_without_flash)
    again = tuned(machine, record=record)
    assert machine.n_runs == 0
    assert (again.compared, again.changes) == (once.compared, once.changes)


def test_more_time_goes_on_with_what_was_left() -> None:
    record = TuningRecord()
    short = tuned(FakeMachine(quick_without_flash), record=record, minutes=1.0)
    assert not short.is_complete
    assert any(each.verdict == "no time" for each in short.compared)
    longer = tuned(FakeMachine(quick_without_flash), record=record, minutes=9.0)
    assert longer.is_complete
    assert longer.changes == {"flash_attention": "off"}


def test_a_second_run_agrees() -> None:
    runs = [tuned(FakeMachine(quick_without_flash, noise=0.02, seed=seed)) for seed in (1, 2)]
    assert runs[0].changes == runs[1].changes
    totals = [run.total for run in runs]
    assert totals[0] is not None
    assert totals[1] is not None
    assert agree(totals[0], totals[1])


GPU = Scope(n_cores=4, n_logical=8, n_layers=31, has_gpu=True, has_flash_attention=True)


def test_layers_go_to_a_gpu_where_that_is_quicker_and_fits() -> None:
    def offloaded(configuration: Configuration, workload: str) -> float:
        n_layers = configuration.n_gpu_layers
        return 1 + (31 if n_layers < 0 else n_layers) / 10

    start = replace(START, n_gpu_layers=8)
    outcome = tuned(FakeMachine(offloaded), start=start, facts=GPU)
    assert outcome.changes == {"n_gpu_layers": -1}
    assert outcome.compared[0].setting == "layers on the GPU"
    full = {"out of memory": lambda now: now.n_gpu_layers < 0}
    outcome = tuned(FakeMachine(offloaded, failing=full), start=start, facts=GPU)
    assert told(outcome, "layers on the GPU", "all").reason == "out of memory"
    assert outcome.changes == {"n_gpu_layers": 15}


def test_without_a_gpu_layers_are_not_tried() -> None:
    outcome = tuned(FakeMachine(), facts=CPU)
    assert not [each for each in outcome.compared if "GPU" in each.setting]


def test_every_step_tells_how_far_it_is() -> None:
    machine = FakeMachine(quick_without_flash)
    steps = list(made_tuner(machine).run())
    assert all(step.setting for step in steps)
    spent = [step.spent_s for step in steps if hasattr(step, "spent_s")]
    assert spent == sorted(spent)
