"""The number of threads follows what measured time says, on a machine made of a table."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.configuration import (
    Configuration,
    FlashAttention,
    KVTypeName,
    PredictorName,
    SpeculationSettings,
)
from engine.events import ThreadsChanged
from engine.generation.processor_load import SAMPLE_S, ProcessorLoad, Shares
from engine.generation.session import Session
from engine.generation.threads import (
    LONG_BATCH,
    N_TRIAL,
    ThreadChoice,
    ThreadController,
    Threads,
)
from engine.memory.hardware import usable_cores
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest
from engine.testing import TEMPLATE, FakeBackend

# Two cores, the starter model: seconds of a step by busy processes and threads.
TWO_CORES = {
    0: {1: 0.019, 2: 0.011},
    1: {1: 0.020, 2: 0.045},
    2: {1: 0.032, 2: 0.150},
    4: {1: 0.050, 2: 0.400},
}


@dataclass
class Machine:
    """Cores, busy processes, and what a step takes; its load is told as an exact figure."""

    n_cores: int
    step_s: Callable[[int, int], float]
    """Of busy processes and threads."""
    n_busy: int = 0
    is_blind: bool = False
    seen: Shares | None = None
    """What an instant shows."""
    now: float = 0.0
    threads: list[int] = field(default_factory=list)
    """Of each step that was made."""

    def shares(self) -> Shares | None:
        if self.is_blind:
            return None
        n_own = self.threads[-1] if self.threads else 1
        share = min(1.0, self.n_cores / (self.n_busy + n_own))
        return Shares(self.n_cores, n_own * share, self.n_busy * share)

    def restart(self) -> Shares | None:
        return self.seen

    def run(self, controller: ThreadController, seconds: float) -> list[ThreadChoice]:
        """Steps for that long; what was chosen on the way."""
        end, chosen = self.now + seconds, []
        while self.now < end:
            elapsed_s = self.step_s(self.n_busy, controller.n_threads)
            self.threads.append(controller.n_threads)
            self.now += elapsed_s
            choice = controller.add(elapsed_s)
            if choice is not None:
                chosen.append(choice)
        return chosen


def two_cores(**fields: object) -> Machine:
    return Machine(2, lambda busy, n: TWO_CORES[busy][n], **fields)  # type: ignore[arg-type]


def controller(machine: Machine, n_threads: int) -> ThreadController:
    return ThreadController(n_threads, machine, clock=lambda: machine.now)


@pytest.mark.parametrize("n_busy", [1, 2, 4])
def test_beside_busy_processes_fewer_threads_are_found_at_once(n_busy: int) -> None:
    machine = two_cores()
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.n_busy = n_busy
    (choice,) = machine.run(threads, 2.0)
    assert choice.n_threads == 1
    assert choice.reason == "others take cores"
    expected = TWO_CORES[n_busy][2] / TWO_CORES[n_busy][1]
    assert choice.speedup == pytest.approx(expected, rel=0.4)


def test_when_the_machine_is_free_again_all_threads_come_back() -> None:
    machine = two_cores()
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.n_busy = 1
    machine.run(threads, 2.0)
    machine.n_busy = 0
    (choice,) = machine.run(threads, 1.0)
    assert (choice.n_threads, choice.reason) == (2, "all cores free again")


def test_a_reply_that_begins_beside_others_needs_no_idle_time_to_compare_with() -> None:
    machine = two_cores(n_busy=1)
    threads = controller(machine, 2)
    (choice,) = machine.run(threads, 1.0)
    assert choice.n_threads == 1


def test_without_a_look_at_the_load_slow_steps_speak_for_themselves() -> None:
    machine = two_cores(is_blind=True)
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.n_busy = 1
    (choice,) = machine.run(threads, 2.0)
    assert (choice.n_threads, choice.reason) == (1, "steps had slowed")


def test_a_load_that_does_not_slow_steps_changes_nothing() -> None:
    machine = Machine(2, lambda _, n: 0.02 / n)
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.n_busy = 1
    assert machine.run(threads, 60.0) == []
    assert set(machine.threads) == {2}


def test_one_step_of_a_second_beside_others_is_enough() -> None:
    machine = Machine(2, lambda busy, n: 1.3 if busy and n == 2 else 0.01)
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.n_busy = 1
    machine.threads.clear()
    machine.run(threads, 2.0)
    assert machine.threads.count(2) == 1
    cold = controller(Machine(2, machine.step_s, n_busy=1), 2)
    assert machine.run(cold, 2.0)[0].n_threads == 1


def test_a_step_that_stalls_on_a_free_machine_is_no_reason() -> None:
    stalls = iter([0.01] * 50 + [1.3] + [0.01] * 50)
    machine = Machine(2, lambda *_: next(stalls))
    threads = ThreadController(2, machine, clock=lambda: machine.now)
    machine.run(threads, 2.0)
    assert set(machine.threads) == {2}


def test_a_context_that_grows_is_no_sign_of_others() -> None:
    machine = Machine(2, lambda _, n: (0.02 + 0.00003 * len(machine.threads)) / n, is_blind=True)
    threads = ThreadController(2, machine, clock=lambda: machine.now)
    machine.run(threads, 30.0)
    assert machine.step_s(0, 2) > 3 * 0.01
    assert set(machine.threads) == {2}


def test_a_number_that_lost_is_tried_at_once_when_the_load_has_changed() -> None:
    machine = two_cores(n_busy=2)
    threads = controller(machine, 2)
    machine.run(threads, 30.0)
    machine.n_cores = 8  # what is told speaks for two threads, and is wrong
    machine.run(threads, 30.0)
    machine.n_cores = 2
    machine.run(threads, 1.0)
    machine.n_busy = 0
    (choice,) = machine.run(threads, 0.5)
    assert choice.n_threads == 2, "the wait of many seconds belonged to another load"


def test_a_load_that_comes_and_goes_wrongly_costs_a_hundredth_and_waits() -> None:
    machine = two_cores(n_busy=4)
    threads = controller(machine, 2)
    machine.run(threads, 3.0)
    machine.threads.clear()
    began = machine.now
    for _ in range(200):
        machine.n_cores = 8
        machine.run(threads, 0.3)
        machine.n_cores = 2
        machine.run(threads, 0.3)
    lost_s = machine.threads.count(2) * (TWO_CORES[4][2] - TWO_CORES[4][1])
    assert lost_s <= 0.06 * (machine.now - began)


@pytest.mark.parametrize("n_busy", [0, 1])
def test_trials_that_lose_cost_next_to_nothing(n_busy: int) -> None:
    machine = two_cores(n_busy=n_busy)
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.threads.clear()
    machine.run(threads, 60.0)
    best = min(TWO_CORES[n_busy].values())
    lost_s = sum(TWO_CORES[n_busy][n] - best for n in machine.threads)
    assert lost_s <= 0.002 * 60.0


def test_a_step_that_shows_that_a_number_is_slow_ends_its_trial() -> None:
    machine = two_cores(n_busy=2)
    threads = controller(machine, 2)
    machine.run(threads, 2.0)
    assert threads.n_threads == 1
    before = len(machine.threads)
    machine.n_cores = 8  # what is told speaks for two threads, and is wrong
    machine.run(threads, 1.0)
    tried = [n for n in machine.threads[before:] if n == 2]
    assert len(tried) == 1 < N_TRIAL


def test_a_number_that_lost_is_tried_less_and_less_often() -> None:
    machine = two_cores(n_busy=1)
    threads = controller(machine, 2)
    machine.run(threads, 1.0)
    machine.n_cores = 8
    before = len(machine.threads)
    machine.run(threads, 120.0)
    assert sum(n == 2 for n in machine.threads[before:]) <= 16


def test_many_cores_yield_as_many_as_others_take() -> None:
    def step_s(n_busy: int, n: int) -> float:
        alone = 0.1 / n
        return alone if n + n_busy <= 16 else 2.5 * alone

    machine = Machine(16, step_s)
    threads = controller(machine, 16)
    machine.run(threads, 3.0)
    machine.n_busy = 4
    machine.run(threads, 2.0)
    assert threads.n_threads == 12
    machine.n_busy = 0
    machine.run(threads, 2.0)
    assert threads.n_threads == 16


def test_others_that_had_to_wait_want_more_than_they_got() -> None:
    assert Shares(16, 12.8, 3.2).free(16) == pytest.approx(12)
    assert Shares(2, 4 / 3, 2 / 3).free(2) == pytest.approx(1)
    assert Shares(16, 0.5, 3.0).free(8) == 13, "a processor with idle cores made nobody wait"


def test_with_one_core_there_is_nothing_to_try() -> None:
    machine = Machine(1, lambda busy, _: 0.02 * (1 + busy), n_busy=3)
    threads = controller(machine, 1)
    assert machine.run(threads, 5.0) == []
    assert set(machine.threads) == {1}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_load_is_what_others_used_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    Times = namedtuple("Times", "user nice system idle iowait steal guest")
    clock, own = Clock(), [0.0]
    now = [Times(10.0, 0.0, 1.0, 50.0, 2.0, 0.0, 4.0)]
    module = "engine.generation.processor_load"
    monkeypatch.setattr(f"{module}.psutil.cpu_times", lambda: now[0])
    monkeypatch.setattr(f"{module}.psutil.cpu_count", lambda: 2)
    monkeypatch.setattr(f"{module}.time.process_time", lambda: own[0])
    load = ProcessorLoad(clock)
    assert load.shares() is None
    clock.now += 2 * SAMPLE_S
    own[0] += SAMPLE_S
    # Others: as much as this program did, a part of it by the host of the virtual machine.
    now[0] = now[0]._replace(user=10.0 + 1.5 * SAMPLE_S, steal=0.5 * SAMPLE_S, idle=50.9)
    shares = load.shares()
    assert shares is not None
    assert (shares.own, shares.others) == (pytest.approx(0.5), pytest.approx(0.5))
    assert shares.free(2) == pytest.approx(1.5)
    load.restart()
    assert load.shares() is None, "what was before a pause says nothing of now"


@pytest.mark.parametrize(
    ("looks", "n_others"),
    [(["3/90"], 2), (["1/90"], 0), (["4/90", "2/90", "3/90"], 1), (["4/90", "1/90"], 0)],
)
def test_an_instant_shows_who_waits_for_a_core_in_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: list[str], n_others: int
) -> None:
    running, rest = tmp_path / "loadavg", looks[1:]

    def write(look: str) -> None:
        running.write_text(f"0.52 0.58 0.59 {look} 11\n")

    write(looks[0])
    module = "engine.generation.processor_load"
    monkeypatch.setattr(f"{module}.time.sleep", lambda _: write(rest.pop(0)) if rest else None)
    seen = ProcessorLoad(running=running).restart()
    assert seen is not None
    assert (seen.own, seen.others) == (0.0, n_others)


@pytest.mark.parametrize("text", ["", "0.1 0.2 0.3", "a b c d/e 9", "\xff"])
def test_where_an_instant_cannot_be_seen_nothing_is_said(tmp_path: Path, text: str) -> None:
    running = tmp_path / "loadavg"
    assert ProcessorLoad(running=running).restart() is None
    running.write_bytes(text.encode("latin-1"))
    assert ProcessorLoad(running=running).restart() is None


def threads_of(backend: FakeBackend, machine: Machine, **fields: tuple[bool, bool]) -> Threads:
    return Threads((backend,), load=machine, clock=lambda: machine.now, **fields)


def drive(threads: Threads, machine: Machine, n_steps: int) -> None:
    for _ in range(n_steps):
        elapsed_s = machine.step_s(machine.n_busy, threads.n_decode)
        machine.threads.append(threads.n_decode)
        machine.now += elapsed_s
        threads.add_step(elapsed_s, 1.0)


def test_the_backend_is_set_to_what_was_chosen() -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores(n_busy=1)
    threads = threads_of(backend, machine)
    threads.begin(is_held=False)
    drive(threads, machine, 40)
    assert backend.n_threads_set == 1


@pytest.mark.parametrize("follows", [(False, True), (False, False)])
def test_a_number_that_the_user_chose_stays(follows: tuple[bool, bool]) -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores(n_busy=1)
    threads = threads_of(backend, machine, follows=follows)
    threads.begin(is_held=False)
    drive(threads, machine, 40)
    assert backend.n_threads_set == 2


def test_a_reply_that_has_to_round_as_before_keeps_the_usual_number() -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores(n_busy=1)
    threads = threads_of(backend, machine)
    threads.begin(is_held=False)
    drive(threads, machine, 40)
    assert threads.n_decode == 1
    threads.begin(is_held=True)
    assert threads.n_decode == 2
    drive(threads, machine, 40)
    machine.n_busy = 0
    for step_s in [0.019] * 3 + [0.011] * 100:
        machine.now += step_s
        assert threads.add_step(step_s, 1.0) is None
    assert backend.n_threads_set == 2


def test_a_reply_begins_with_the_threads_that_others_leave_and_says_so() -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores(n_busy=1, seen=Shares(2, 0.0, 1.0))
    threads = threads_of(backend, machine)
    threads.begin(is_held=False)
    assert backend.n_threads_set == 1
    machine.threads.append(1)
    told = threads.add_step(TWO_CORES[1][1], 1.0)
    assert told == ThreadsChanged(1, 2, "others take cores")
    assert threads.add_step(TWO_CORES[1][1], 1.0) is None
    threads.turn_to_prompt(LONG_BATCH)
    assert backend.n_threads_set == 1, "a prompt begins with what is left, too"
    threads.begin(is_held=True)
    threads.turn_to_steps()
    assert backend.n_threads_set == 2, "a reply that has to round as before looks at nothing"


@pytest.mark.parametrize(
    ("n_cores", "n_others", "n_expected"), [(16, 1, 15), (16, 40, 8), (2, 0, 2)]
)
def test_a_reply_begins_with_half_of_the_usual_threads_at_least(
    n_cores: int, n_others: int, n_expected: int
) -> None:
    seen = Shares(n_cores, 0.0, n_others)
    backend, machine = FakeBackend(n_threads=n_cores), Machine(n_cores, lambda _, n: 1 / n)
    machine.seen = seen
    threads = threads_of(backend, machine)
    threads.begin(is_held=False)
    assert threads.n_decode == n_expected


def test_what_an_instant_showed_wrongly_is_corrected_by_measured_time() -> None:
    """Others are there, as was seen, and yet two threads are quicker: they yield."""
    machine = Machine(2, lambda _, n: 0.02 / n, n_busy=1, seen=Shares(2, 0.0, 1.0))
    threads = controller(machine, 2)
    assert threads.restart(machine.restart())
    (choice,) = machine.run(threads, 1.0)
    assert choice.n_threads == 2
    right = two_cores(n_busy=1, seen=Shares(2, 0.0, 1.0))
    stays = controller(right, 2)
    stays.restart(right.restart())
    right.run(stays, 30.0)
    assert right.threads.count(2) == 2, "a second step shows that two threads are slower"


def test_usual_steps_are_weighed_a_few_times_a_second_and_slow_ones_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = two_cores()
    threads = ThreadController(2, machine, clock=lambda: machine.now)
    weighed = []
    weigh = threads._weigh
    monkeypatch.setattr(threads, "_weigh", lambda unit_s: (weighed.append(unit_s), weigh(unit_s)))
    machine.run(threads, 10.0)
    assert len(weighed) == pytest.approx(10.0 / SAMPLE_S, rel=0.15)
    weighed.clear()
    threads.add(TWO_CORES[0][2])
    assert not weighed
    threads.add(2 * TWO_CORES[0][2])
    assert len(weighed) == 1


def test_a_prompt_on_a_free_machine_tries_nothing() -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores()
    threads = threads_of(backend, machine)
    machine.threads.append(2)
    for _ in range(1000):
        threads.turn_to_prompt(LONG_BATCH)
        threads.read(LONG_BATCH, LONG_BATCH * 0.001)
        assert backend.n_threads_set == 2


def test_the_backend_is_set_only_where_a_number_changes() -> None:
    class Counting(FakeBackend):
        n_set = 0

        def set_threads(self, n_threads: int) -> None:
            self.n_set += 1
            super().set_threads(n_threads)

    backend, machine = Counting(n_threads=2), two_cores(n_busy=1)
    threads = threads_of(backend, machine)
    threads.begin(is_held=False)
    drive(threads, machine, 100)
    assert backend.n_threads_set == 1
    assert backend.n_set == 2, "once at the start and once at the change"


def test_prompts_have_a_number_of_their_own() -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores(n_busy=2)
    threads = threads_of(backend, machine)
    threads.begin(is_held=False)
    changed = None
    for _ in range(12):
        threads.turn_to_prompt(LONG_BATCH)
        n_prefill = backend.n_threads_set
        elapsed_s = LONG_BATCH * {1: 0.001, 2: 0.004}[n_prefill]
        machine.threads.append(n_prefill)
        machine.now += elapsed_s
        changed = threads.read(LONG_BATCH, elapsed_s) or changed
        threads.read(LONG_BATCH - 1, 100.0)
    threads.turn_to_prompt(LONG_BATCH)
    assert backend.n_threads_set == 1
    threads.turn_to_prompt(LONG_BATCH - 1)
    assert backend.n_threads_set == 2, "a short batch is computed as steps are"
    threads.turn_to_prompt(LONG_BATCH)
    threads.turn_to_steps()
    assert backend.n_threads_set == 2
    assert changed is not None
    assert changed.n_prefill == 1


def test_a_container_s_quota_limits_the_cores(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (group / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == (1, 1)
    (group / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == usable_cores()


def session_beside_others(
    machine: Machine, settings: SpeculationSettings, *, rounds_by_threads: bool
) -> tuple[Session, FakeBackend]:
    backend = FakeBackend(n_threads=2, rounds_by_threads=rounds_by_threads)
    threads = threads_of(backend, machine)
    session = Session(backend, ChatTemplate(TEMPLATE), settings, threads=threads)
    threads.begin(is_held=False)
    drive(threads, machine, 40)
    assert backend.n_threads_set == 1
    return session, backend


@pytest.mark.parametrize(
    ("seed", "rounds_by_threads", "n_expected"),
    [(None, True, 1), (7, True, 2), (7, False, 1)],
)
def test_seeded_replies_keep_the_usual_threads_where_these_round_otherwise(
    seed: int | None, rounds_by_threads: bool, n_expected: int
) -> None:
    settings = SpeculationSettings(predictor=PredictorName.OFF)
    session, backend = session_beside_others(
        two_cores(n_busy=1), settings, rounds_by_threads=rounds_by_threads
    )
    request = GenerationRequest(raw_prompt="abc", max_tokens=2, seed=seed)
    for _ in session.generate(request, Cancellation()):
        assert backend.n_threads_set == n_expected


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(
    ("flash_attention", "kv_type", "n_behind", "is_equal"),
    [
        ("off", "f16", 600, True),
        ("on", "f16", 100, True),
        ("on", "q8_0", 600, True),
        ("on", "f16", 600, False),
    ],
)
def test_what_is_said_to_round_by_threads_does_and_nothing_else(
    starter_path: Path,
    flash_attention: FlashAttention,
    kv_type: KVTypeName,
    n_behind: int,
    is_equal: bool,
) -> None:
    configuration = Configuration(
        model_path=starter_path,
        n_ctx=1024,
        n_threads=2,
        flash_attention=flash_attention,
        type_k=kv_type,
        type_v=kv_type,
    )
    backend = LlamaCppBackend(configuration, NativeLog())
    rows = []
    for n_threads in (2, 1):
        backend.set_threads(n_threads)
        sequence = backend.open()
        tokens = [100 + 7 * n for n in range(n_behind)]
        for start in range(0, n_behind, backend.n_batch):
            sequence.prefill(tokens[start : start + backend.n_batch])
        rows.append(np.stack([sequence.decode(3000 + n).logits[0].copy() for n in range(3)]))
    backend.close()
    assert np.array_equal(*rows) is is_equal
    assert backend.rounds_by_threads or is_equal
