"""The number of threads follows the cores that others leave, on a machine made of a table."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engine.configuration import PredictorName, SpeculationSettings
from engine.generation.cpu_load import SAMPLE_S, ProcessorLoad, wanted_cores
from engine.generation.session import Session
from engine.generation.threads import Threads
from engine.memory.hardware import usable_cores
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest
from engine.testing import TEMPLATE, FakeBackend

# Two cores, the starter model: seconds of a step by busy processes and threads.
TWO_CORES = {
    0: {1: 0.019, 2: 0.011},
    1: {1: 0.020, 2: 0.545},
    2: {1: 0.032, 2: 0.950},
    4: {1: 0.050, 2: 1.400},
}


@dataclass
class Machine:
    """Cores, busy processes, and what a step takes; a `ProcessorLoad` that sees them all."""

    n_cores: int
    step_s: Callable[[int, int], float]
    """Of busy processes and threads."""
    n_busy: int = 0
    is_blind: bool = False
    """Whether an instant cannot be seen."""
    now: float = 0.0
    steps: list[int] = field(default_factory=list)
    """Threads of each step."""
    looked_at: float = 0.0

    def free_now(self) -> float | None:
        return None if self.is_blind else self.n_cores - self.n_busy

    def free(self, n_threads: int) -> float | None:
        if self.now - self.looked_at < SAMPLE_S:
            return None
        self.looked_at = self.now
        share = min(1.0, self.n_cores / (self.n_busy + n_threads))
        own, others = n_threads * share, self.n_busy * share
        return self.n_cores - wanted_cores(others, own, n_threads, self.n_cores)

    def run(self, threads: Threads, seconds: float) -> int:
        """Make steps for that long; how many they were."""
        end, before = self.now + seconds, len(self.steps)
        while self.now < end:
            self.steps.append(threads.n_decode)
            self.now += self.step_s(self.n_busy, threads.n_decode)
            threads.follow()
        return len(self.steps) - before


def two_cores(**fields: object) -> Machine:
    return Machine(2, lambda busy, n: TWO_CORES[busy][n], **fields)  # type: ignore[arg-type]


def threads_on(machine: Machine, n_threads: int = 2, **fields: tuple[bool, bool]) -> Threads:
    backend = FakeBackend(n_threads=n_threads)
    return Threads((backend,), load=machine, clock=lambda: machine.now, **fields)


@pytest.mark.parametrize("n_busy", [1, 2, 4])
@pytest.mark.parametrize("n_tokens", [20, 200])
def test_a_reply_beside_busy_processes_is_as_fast_as_with_one_thread(
    n_busy: int, n_tokens: int
) -> None:
    machine = two_cores(n_busy=n_busy)
    threads = threads_on(machine)
    threads.begin()
    while len(machine.steps) < n_tokens:
        machine.run(threads, 0.001)
    assert machine.now <= n_tokens * TWO_CORES[n_busy][1] / 0.99


def test_all_threads_come_back_when_the_machine_is_free_again() -> None:
    machine = two_cores(n_busy=1)
    threads = threads_on(machine)
    threads.begin()
    assert threads.n_decode == 1
    machine.run(threads, 3.0)
    machine.n_busy = 0
    machine.run(threads, 1.0)
    assert threads.n_decode == 2


def test_many_cores_yield_as_many_as_others_take() -> None:
    machine = Machine(16, lambda n_busy, n: 0.1 / n * (1.0 if n + n_busy <= 16 else 2.5))
    threads = threads_on(machine, 16)
    threads.begin()
    for n_busy, n_threads in ((4, 12), (0, 16), (40, 1), (8, 8)):
        machine.n_busy = n_busy
        machine.run(threads, 5.0)
        assert threads.n_decode == n_threads


@pytest.mark.parametrize("follows", [(False, True), (False, False)])
def test_a_number_that_the_user_chose_stays(follows: tuple[bool, bool]) -> None:
    machine = two_cores(n_busy=1)
    threads = threads_on(machine, follows=follows)
    threads.begin()
    machine.run(threads, 3.0)
    assert threads.n_decode == 2


@pytest.mark.parametrize("seed", [None, 7])
def test_every_reply_of_a_session_follows_the_load(seed: int | None) -> None:
    backend, machine = FakeBackend(n_threads=2), two_cores(n_busy=1)
    threads = Threads((backend,), load=machine, clock=lambda: machine.now)
    settings = SpeculationSettings(predictor=PredictorName.OFF)
    session = Session(backend, ChatTemplate(TEMPLATE), settings, threads=threads)
    for n_busy, n_threads in ((1, 1), (0, 2)):
        machine.n_busy = n_busy
        request = GenerationRequest(raw_prompt="abc", max_tokens=2, seed=seed)
        for _ in session.generate(request, Cancellation()):
            assert backend.n_threads_set == n_threads


def test_load_is_what_others_used_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    Times = namedtuple("Times", "user nice system idle iowait steal guest")
    at, own = [100.0], [0.0]
    now = [Times(10.0, 0.0, 1.0, 50.0, 2.0, 0.0, 4.0)]
    module = "engine.generation.cpu_load"
    monkeypatch.setattr(f"{module}.psutil.cpu_times", lambda: now[0])
    monkeypatch.setattr(f"{module}.psutil.cpu_count", lambda: 2)
    monkeypatch.setattr(f"{module}.time.process_time", lambda: own[0])
    load = ProcessorLoad(lambda: at[0])
    assert load.free(2) is None
    at[0] += 2 * SAMPLE_S
    own[0] += SAMPLE_S
    # Others: as much as this program did, a part of it by the host of the virtual machine.
    now[0] = now[0]._replace(user=10.0 + 1.5 * SAMPLE_S, steal=0.5 * SAMPLE_S, idle=50.9)
    assert load.free(2) == pytest.approx(1.5)
    assert load.free(2) is None, "nothing is known of the time since the last look"


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
    module = "engine.generation.cpu_load"
    monkeypatch.setattr(f"{module}.psutil.cpu_count", lambda: 4)
    monkeypatch.setattr(f"{module}.time.sleep", lambda _: write(rest.pop(0)) if rest else None)
    assert ProcessorLoad(running=running).free_now() == 4 - n_others


def test_a_container_s_quota_limits_the_cores(tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (group / "cpu.max").write_text("100000 100000\n")
    assert usable_cores(tmp_path) == (1, 1)
    (group / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == usable_cores()
