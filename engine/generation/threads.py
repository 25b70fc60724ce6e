"""How many threads llama.cpp computes with, decided by measured time.

The threads of a step wait for one another at every operation, so one core that is shared with
another program stops all of them: on two cores beside one busy process two threads decode at a
quarter of their speed and one thread at nearly all of its own. How much of the processor others
take says when another number may be quicker; the time of a few steps with it decides.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Protocol

import psutil

from engine.backends.base import Backend
from engine.events import ThreadsChanged

SAMPLE_S = 0.2
"""Between two looks at what other programs take."""
N_TRIAL = 3
"""Steps that a number of threads is tried for: a hundredth of a second to a second."""
N_RECENT = 8
"""Steps that tell the present speed."""
N_ENOUGH = 3
QUICKER = 0.95
"""Share of the present time from which a tried number stays."""
MUCH_SLOWER = 1.5
"""Times the time expected of fewer threads from which they are tried without a sign of others."""
STARVED = 4.0
"""Times the best time from which a single step beside others is enough to try fewer threads."""
SLOWED = 1.1
"""Times the best time from which steps beside others make fewer threads worth a trial, where these
were never measured."""
SLOWING = 1.002
"""By which the best time of a number rises with each step: contexts grow, and steps with them."""
FULL = 0.9
"""Share of a processor's time from which it is fully taken."""
EXPLORED = 0.0025
"""Share of the time that is spent on numbers tried without a reason: how the knee is found."""
LEAST_LOSS = 0.1
"""Share of a unit that trying a number out of curiosity is taken to cost at least."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Between two trials of one number that lost, doubling; anew when the others' load has changed."""
LOST = 0.01
"""Share of the time that lost trials took from which a changed load shortens no wait."""
LONG_BATCH = 64
"""Tokens of a prefill from which its time tells a speed."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Cores' worth of time that the processor has, and that this program and all others took."""

    n_cores: int
    own: float
    others: float

    def free(self, n_threads: int) -> float:
        """Cores that others would leave if nobody had to wait for one.

        On a processor that is fully taken, others got a share beside `n_threads` of this program,
        and would take more.
        """
        wanted = self.others
        if self.own and self.own + self.others > FULL * self.n_cores:
            wanted *= max(1.0, n_threads / self.own)
        return self.n_cores - wanted


class Load(Protocol):
    """What others take of the processor."""

    def shares(self) -> Shares | None:
        """Of the last moment of computing; None while unknown."""
        ...

    def restart(self) -> None:
        """Forget what was before: it says nothing of now."""
        ...


class ProcessorLoad:
    """The load as the operating system counts it: all busy time but this process's own.

    Time that a virtual machine's host takes (steal) counts as others'.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._n_cores = psutil.cpu_count() or 1
        self._at, self._busy_s, self._own_s = self._read()
        self._shares: Shares | None = None

    def shares(self) -> Shares | None:
        elapsed_s = self._clock() - self._at
        if elapsed_s < SAMPLE_S:
            return self._shares
        at, busy_s, own_s = self._read()
        own = (own_s - self._own_s) / elapsed_s
        others = max((busy_s - self._busy_s) / elapsed_s - own, 0.0)
        self._shares = Shares(self._n_cores, own, others)
        self._at, self._busy_s, self._own_s = at, busy_s, own_s
        return self._shares

    def restart(self) -> None:
        self._at, self._busy_s, self._own_s = self._read()
        self._shares = None

    def _read(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        # What guests and their hosts use is a part of `user` and `nice` already.
        counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return self._clock(), counted - idle_s, time.process_time()


@dataclass(frozen=True, slots=True)
class Choice:
    """A number of threads that stays, and why."""

    n_threads: int
    reason: str
    speedup: float
    """Time of a step before over the time of a step with it."""


@dataclass(slots=True)
class _Trial:
    n_threads: int
    base_s: float
    """Usual time of a step before it."""
    is_asked: bool
    """Whether something spoke for it; else it is an exploration and paid from its budget."""
    spent_s: float = 0.0
    n_done: int = 0


@dataclass(slots=True)
class _Wait:
    until: float
    seconds: float


class ThreadController:
    """The number of threads for one kind of work, whose times come in one unit.

    What speaks for another number: the cores that others leave (fewer when they take some, up to
    the number of a free machine when they end), a step that takes longer than fewer threads are
    expected to, and from time to time curiosity. A number is tried for `N_TRIAL` units; the first
    that shows that it is slower ends the trial. A number that lost is left alone for a while.
    """

    def __init__(
        self,
        n_threads: int,
        n_most: int,
        load: Load,
        *,
        n_trial: int = N_TRIAL,
        explores: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start with `n_threads` of at most `n_most`."""
        self.n_threads = n_threads
        """For the next unit of work; during a trial the number tried."""
        self._n_most = n_most
        self._n_settled = self._n_free = n_threads
        self._load, self._clock = load, clock
        self._n_trial, self._explores = n_trial, explores
        self._recent: deque[float] = deque(maxlen=N_RECENT)
        self._last_target = n_threads
        self._best_s: dict[int, float] = {}
        self._trial: _Trial | None = None
        self._waits: dict[int, _Wait] = {}
        self._total_s = self._explored_s = self._lost_s = 0.0

    def add(self, unit_s: float) -> Choice | None:
        """Take the time of a unit of work with `n_threads`; a choice where that changed it.

        Args:
            unit_s: Seconds of one unit: a plain step, a token of a prompt.
        """
        self._total_s += unit_s
        if self._trial is not None:
            return self._judge(self._trial, unit_s)
        known = self._best_s.get(self._n_settled)
        free = self._free()
        target = self._target(free)
        if target != self._last_target:
            self._load_changed(target)
        self._recent.append(unit_s)
        if free is None or free >= self._n_settled - 0.5:
            self._best_s[self._n_settled] = (
                unit_s if known is None else min(unit_s, known * SLOWING)
            )
        n_enough = 1 if self._is_starved(unit_s, target) else min(N_ENOUGH, self._n_trial)
        if len(self._recent) >= n_enough:
            self._begin_trial(free, target)
        return None

    def _is_starved(self, unit_s: float, target: int) -> bool:
        """Whether one unit shows by itself that threads wait for cores: it may take seconds."""
        if target >= self._n_settled:
            return False
        known = self._best_s.get(self._n_settled)
        return known is None or unit_s > STARVED * known

    def _load_changed(self, target: int) -> None:
        """Compare with what was measured beside this load only, and judge all numbers anew."""
        self._last_target = target
        self._recent.clear()
        if self._lost_s <= LOST * self._total_s:
            self._waits.clear()

    def restart(self) -> None:
        """Forget the recent times: what comes next is not to be compared with them."""
        self._recent.clear()
        self._trial = None
        self.n_threads = self._n_settled

    def _free(self) -> float | None:
        shares = self._load.shares()
        return None if shares is None else shares.free(self.n_threads)

    def _target(self, free: float | None) -> int:
        """The number that the load speaks for."""
        if free is None:
            return self._n_settled
        return max(1, min(int(free + 0.5), self._n_free))

    def _begin_trial(self, free: float | None, target: int) -> None:
        # Beside others some steps take very long, and count; elsewhere one that stalls does not.
        is_beside_others = target < self._n_settled
        usual_s = (fmean if is_beside_others else median)(self._recent)
        n_tried, is_asked = self._asked(target, usual_s), True
        if n_tried is None and self._explores:
            n_tried, is_asked = self._curious(free, usual_s), False
        if n_tried is not None:
            self._trial = _Trial(n_tried, usual_s, is_asked)
            self.n_threads = n_tried

    def _asked(self, target: int, usual_s: float) -> int | None:
        """A number that load or time speak for."""
        if target > self._n_settled and self._is_open(target):
            return target
        if target < self._n_settled and self._is_open(target):
            return target if usual_s > self._worth_s(target) else None
        fewer = self._n_settled - 1
        is_slow = fewer and usual_s > MUCH_SLOWER * self._expected_s(fewer, default=usual_s)
        return fewer if is_slow and self._is_open(fewer) else None

    def _worth_s(self, n_threads: int) -> float:
        """The time of a unit from which a number that the load speaks for is worth a trial."""
        here = self._best_s.get(self._n_settled, 0.0)
        return self._best_s.get(n_threads, SLOWED * here)

    def _expected_s(self, n_threads: int, default: float) -> float:
        """The time of a unit with fewer threads: as it was, or in proportion to them."""
        if n_threads in self._best_s:
            return self._best_s[n_threads]
        here = self._best_s.get(self._n_settled)
        return default if here is None else here * self._n_settled / n_threads

    def _curious(self, free: float | None, usual_s: float) -> int | None:
        """A number worth a look on a machine that is free, as far as the budget goes."""
        budget_s = EXPLORED * self._total_s - self._explored_s
        if budget_s < self._n_trial * usual_s * LEAST_LOSS:
            return None
        n = self._n_settled
        n_most = self._n_most if free is None else min(self._n_most, int(free + 0.5))
        for other in dict.fromkeys((n - 1, n + 1, (3 * n) // 4, n // 2, (3 * n) // 2)):
            if not 1 <= other <= n_most or other == n or n > n_most:
                continue
            loss_s = self._n_trial * usual_s * max(n / other - 1.0, LEAST_LOSS)
            if loss_s > budget_s:
                continue
            if self._is_open(other):
                return other
        return None

    def _is_open(self, n_threads: int) -> bool:
        wait = self._waits.get(n_threads)
        return wait is None or self._clock() >= wait.until

    def _judge(self, trial: _Trial, unit_s: float) -> Choice | None:
        trial.n_done += 1
        trial.spent_s += unit_s
        if not trial.is_asked:
            self._explored_s += max(unit_s - trial.base_s, 0.0)
        allowed_s = QUICKER * trial.base_s * self._n_trial
        if trial.spent_s > allowed_s:
            self._lose(trial)
        elif trial.n_done == self._n_trial:
            return self._win(trial)
        return None

    def _lose(self, trial: _Trial) -> None:
        before = self._waits.get(trial.n_threads)
        seconds = FIRST_WAIT_S if before is None else min(2 * before.seconds, LONGEST_WAIT_S)
        self._waits[trial.n_threads] = _Wait(self._clock() + seconds, seconds)
        self._lost_s += max(trial.spent_s - trial.n_done * trial.base_s, 0.0)
        self._trial = None
        self.n_threads = self._n_settled

    def _win(self, trial: _Trial) -> Choice:
        before, unit_s = self._n_settled, trial.spent_s / trial.n_done
        free = self._free()
        if not trial.is_asked:
            self._n_free = trial.n_threads
        self._n_settled = trial.n_threads
        self._recent.clear()
        self._recent.extend([unit_s] * trial.n_done)
        self._trial = None
        reason = _reason(trial, before, free, self._n_free)
        return Choice(trial.n_threads, reason, trial.base_s / unit_s)


def _reason(trial: _Trial, before: int, free: float | None, n_free: int) -> str:
    if not trial.is_asked:
        return "found by trying"
    if trial.n_threads > before:
        return "all cores free again" if trial.n_threads == n_free else "cores became free"
    if free is None or free >= before - 0.5:
        return "steps had slowed"
    return "others take cores"


class Threads:
    """The threads of a session's models: decoding and prefill apart, which like unlike numbers.

    A number that the user chose is fixed. While a reply has to round as it did before, its
    steps keep the number that they always have (`hold`).
    """

    def __init__(
        self,
        backends: tuple[Backend, ...],
        *,
        follows: tuple[bool, bool] = (True, True),
        load: Load | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start as the first backend was opened.

        Args:
            backends: The target, and the draft model where there is one: all are set alike.
            follows: Whether the numbers for decode steps and for prefills follow what is quickest.
            load: What others leave of the processor; None asks the operating system.
            clock: Seconds.
        """
        self._backends = backends
        self._usual = backends[0].n_threads
        self._n_set = 0
        self._follows = follows
        self._is_held = False
        self._load = load = ProcessorLoad(clock) if load is None else load
        most, (n_decode, n_prefill) = backends[0].n_threads_most, self._usual
        self._decode = ThreadController(n_decode, most, load, clock=clock)
        self._prefill = ThreadController(
            n_prefill, most, load, n_trial=1, explores=False, clock=clock
        )
        self._told = ThreadsChanged(n_decode, n_prefill)

    @property
    def n_decode(self) -> int:
        """Threads of the next step, whether it has one row or those of a draft."""
        return self._usual[0] if self._is_held else self._decode.n_threads

    def begin(self, *, is_held: bool) -> None:
        """A reply begins; where `is_held` its steps keep the usual number."""
        self._is_held = is_held
        self._load.restart()
        self._decode.restart()
        self._prefill.restart()
        self._set(self.n_decode)

    def turn_to_prompt(self, n_tokens: int) -> None:
        """A batch of a prompt comes next; a short one is computed as steps are."""
        self._set(self.n_decode if n_tokens < LONG_BATCH else self._prefill.n_threads)

    def turn_to_steps(self) -> None:
        """Steps come next: llama.cpp left alone would take the rows of a draft for a prompt."""
        self._set(self.n_decode)

    def stepped(self, step_s: float) -> ThreadsChanged | None:
        """Take the time of a plain step; what changed for good, if anything."""
        if self._is_held or not self._follows[0]:
            return None
        choice = self._decode.add(step_s)
        self._set(self.n_decode)
        return None if choice is None else self._tell(choice, self._decode.n_threads, None)

    def read(self, n_tokens: int, elapsed_s: float) -> ThreadsChanged | None:
        """Take the time of a batch of a prompt; what changed for good, if anything."""
        if not self._follows[1] or n_tokens < LONG_BATCH:
            return None
        choice = self._prefill.add(elapsed_s / n_tokens)
        return None if choice is None else self._tell(choice, None, self._prefill.n_threads)

    def _tell(self, choice: Choice, decode: int | None, prefill: int | None) -> ThreadsChanged:
        is_of_steps = decode is not None
        self._told = ThreadsChanged(
            n_decode=self._told.n_decode if decode is None else decode,
            n_prefill=self._told.n_prefill if prefill is None else prefill,
            reason=choice.reason if is_of_steps else self._told.reason,
            speedup=choice.speedup if is_of_steps else self._told.speedup,
        )
        return self._told

    def _set(self, n_threads: int) -> None:
        if n_threads != self._n_set:
            self._n_set = n_threads
            for backend in self._backends:
                backend.set_threads(n_threads)
