"""How many threads llama.cpp computes with, decided by measured time.

The threads of a step wait for one another at every operation, so one core that is shared with
another program stops all of them: on two cores beside one busy process two threads decode at a
quarter of their speed and one thread at nearly all of its own. How much of the processor others
take says when another number may be quicker; the time of a few steps with it decides.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean, median

from engine.backends.base import Backend
from engine.events import ThreadsChanged
from engine.generation.processor_load import SAMPLE_S, CpuLoad, ProcessorLoad, Shares

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
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
"""Between two trials of one number that lost, doubling; anew when the others' load has changed."""
LOST = 0.01
"""Share of the time that lost trials took from which a changed load shortens no wait."""
LONG_BATCH = 64
"""Tokens of a prefill from which its time tells a speed."""
OTHERS = "others take cores"


@dataclass(frozen=True, slots=True)
class ThreadChoice:
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
    spent_s: float = 0.0
    n_done: int = 0


@dataclass(slots=True)
class _Wait:
    until: float
    seconds: float


class ThreadController:
    """The number of threads for one kind of work, whose times come in one unit.

    What speaks for another number: the cores that others leave (fewer when they take some, up to
    the number of a free machine when they end), and a step that takes longer than fewer threads are
    expected to. A number is tried for `N_TRIAL` units; the first that shows that it is slower ends
    the trial. A number that lost is left alone for a while.
    Usual steps are weighed together, `SAMPLE_S` of them at a time.
    """

    def __init__(
        self,
        n_threads: int,
        load: CpuLoad,
        *,
        n_trial: int = N_TRIAL,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start with `n_threads`, which is also the most."""
        self.n_threads = n_threads
        """For the next unit of work; during a trial the number tried."""
        self._n_settled = self._n_usual = n_threads
        self._load, self._clock = load, clock
        self._n_trial = n_trial
        self._recent: deque[float] = deque(maxlen=N_RECENT)
        self._last_target = n_threads
        self._best_s: dict[int, float] = {}
        self._trial: _Trial | None = None
        self._waits: dict[int, _Wait] = {}
        self._unproven: int | None = None
        """The number that a reply would have begun with, had others not been seen."""
        self._total_s = self._lost_s = 0.0
        self._shares: Shares | None = None
        self._usual_s = self._weighed_until_s = 0.0

    def add(self, unit_s: float) -> ThreadChoice | None:
        """Take the time of a unit of work with `n_threads`; a choice where that changed it.

        Args:
            unit_s: Seconds of one unit: a plain step, a token of a prompt.
        """
        self._total_s += unit_s
        if self._trial is not None:
            return self._judge(self._trial, unit_s)
        self._recent.append(unit_s)
        if unit_s < self._usual_s and self._total_s < self._weighed_until_s:
            best_s = self._best_s[self._n_settled] * SLOWING
            self._best_s[self._n_settled] = unit_s if unit_s < best_s else best_s
        else:
            self._shares = self._load.shares()
            self._weigh(unit_s)
        return None

    def _weigh(self, unit_s: float) -> None:
        """Look at all that could speak for another number."""
        n, known = self._n_settled, self._best_s.get(self._n_settled)
        free = self._free()
        target = self._target(free)
        if target != self._last_target:
            self._load_changed(target)
            self._recent.append(unit_s)
        is_free = free is None or free >= n - 0.5
        if is_free:
            self._best_s[n] = unit_s if known is None else min(unit_s, known * SLOWING)
        n_enough = 1 if self._is_starved(unit_s, target) else min(N_ENOUGH, self._n_trial)
        if len(self._recent) >= n_enough:
            self._begin_trial(target)
        is_settled = is_free and target == n and len(self._recent) >= n_enough
        self._usual_s = SLOWED * self._best_s[n] if is_settled else 0.0
        self._weighed_until_s = self._total_s + SAMPLE_S

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

    def restart(self, seen: Shares | None) -> bool:
        """Forget the recent times: what comes next is not to be compared with them.

        Where others are seen to compute, work begins with what they leave, though with no less
        than half of the usual number; whether that is right is for measured time to say.

        Args:
            seen: The load of this instant, if it can be seen.

        Returns:
            Whether the number is smaller for that.
        """
        self._recent.clear()
        self._trial = self._shares = None
        self._usual_s = 0.0
        before = self._n_settled
        if seen is not None:
            least = (self._n_usual + 1) // 2
            self._n_settled = min(before, max(least, self._target(seen.free(before))))
        is_smaller = self._n_settled < before
        self._unproven = before if is_smaller else None
        self.n_threads = self._n_settled
        return is_smaller

    def _free(self) -> float | None:
        return None if self._shares is None else self._shares.free(self.n_threads)

    def _target(self, free: float | None) -> int:
        """The number that the load speaks for."""
        if free is None:
            return self._n_settled
        return max(1, min(int(free + 0.5), self._n_usual))

    def _begin_trial(self, target: int) -> None:
        # Beside others some steps take very long, and count; elsewhere one that stalls does not.
        is_beside_others = target < self._n_settled
        usual_s = (fmean if is_beside_others else median)(self._recent)
        n_tried = self._asked(target, usual_s)
        if n_tried is not None:
            self._trial = _Trial(n_tried, usual_s)
            self.n_threads = n_tried

    def _asked(self, target: int, usual_s: float) -> int | None:
        """A number that load or time speak for."""
        unproven = self._unproven
        if unproven is not None and self._shares is not None:
            self._unproven = None
            return max(target, unproven)
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

    def _is_open(self, n_threads: int) -> bool:
        wait = self._waits.get(n_threads)
        return wait is None or self._clock() >= wait.until

    def _judge(self, trial: _Trial, unit_s: float) -> ThreadChoice | None:
        trial.n_done += 1
        trial.spent_s += unit_s
        if trial.spent_s > self._allowed_s(trial):
            self._lose(trial)
        elif trial.n_done == self._n_trial:
            return self._win(trial)
        return None

    def _allowed_s(self, trial: _Trial) -> float:
        return QUICKER * trial.base_s * self._n_trial

    def _lose(self, trial: _Trial) -> None:
        before = self._waits.get(trial.n_threads)
        seconds = FIRST_WAIT_S if before is None else min(2 * before.seconds, LONGEST_WAIT_S)
        self._waits[trial.n_threads] = _Wait(self._clock() + seconds, seconds)
        self._lost_s += max(trial.spent_s - trial.n_done * trial.base_s, 0.0)
        self._trial = None
        self.n_threads = self._n_settled

    def _win(self, trial: _Trial) -> ThreadChoice:
        before, unit_s = self._n_settled, trial.spent_s / trial.n_done
        self._shares = self._load.shares()
        free = self._free()
        self._n_settled = trial.n_threads
        self._recent.clear()
        self._recent.extend([unit_s] * trial.n_done)
        self._trial, self._unproven, self._usual_s = None, None, 0.0
        reason = _reason(trial, before, free, self._n_usual)
        return ThreadChoice(trial.n_threads, reason, trial.base_s / unit_s)


def _reason(trial: _Trial, before: int, free: float | None, n_usual: int) -> str:
    if trial.n_threads > before:
        return "all cores free again" if trial.n_threads == n_usual else "cores became free"
    if free is None or free >= before - 0.5:
        return "steps had slowed"
    return OTHERS


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
        load: CpuLoad | None = None,
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
        n_decode, n_prefill = self._usual
        self._decode = ThreadController(n_decode, load, clock=clock)
        self._prefill = ThreadController(n_prefill, load, n_trial=1, clock=clock)
        self._told = ThreadsChanged(n_decode, n_prefill)
        self._untold: ThreadsChanged | None = None

    @property
    def n_decode(self) -> int:
        """Threads of the next step, whether it has one row or those of a draft."""
        return self._usual[0] if self._is_held else self._decode.n_threads

    def begin(self, *, is_held: bool) -> None:
        """A reply begins; where `is_held` its steps keep the usual number."""
        self._is_held = is_held
        follows_steps = self._follows[0] and not is_held
        seen = self._load.restart() if any(self._follows) else None
        has_fewer = self._decode.restart(seen if follows_steps else None)
        self._prefill.restart(seen if self._follows[1] else None)
        if has_fewer:
            self._untold = self._told = replace(
                self._told, n_decode=self._decode.n_threads, reason=OTHERS, speedup=1.0
            )
        self._set(self.n_decode)

    def turn_to_prompt(self, n_tokens: int) -> None:
        """A batch of a prompt comes next; a short one is computed as steps are."""
        self._set(self.n_decode if n_tokens < LONG_BATCH else self._prefill.n_threads)

    def turn_to_steps(self) -> None:
        """Steps come next: llama.cpp left alone would take the rows of a draft for a prompt."""
        self._set(self.n_decode)

    def add_step(self, elapsed_s: float, n_steps: float) -> ThreadsChanged | None:
        """Take the time of a step; what changed for good, if anything.

        Args:
            elapsed_s: Seconds since the step before it.
            n_steps: What it was expected to take, in plain steps.
        """
        if self._is_held or not self._follows[0]:
            return None
        choice = self._decode.add(elapsed_s / n_steps)
        self._set(self.n_decode)
        if choice is not None:
            self._untold = self._tell(choice, self._decode.n_threads, None)
        changed, self._untold = self._untold, None
        return changed

    def read(self, n_tokens: int, elapsed_s: float) -> ThreadsChanged | None:
        """Take the time of a batch of a prompt; what changed for good, if anything."""
        if not self._follows[1] or n_tokens < LONG_BATCH:
            return None
        choice = self._prefill.add(elapsed_s / n_tokens)
        return None if choice is None else self._tell(choice, None, self._prefill.n_threads)

    def _tell(
        self, choice: ThreadChoice, decode: int | None, prefill: int | None
    ) -> ThreadsChanged:
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
