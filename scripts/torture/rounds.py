"""One round: one or two applications on one home, killed at some moment, then looked at."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from engine.files import drafting_process
from torture.journal import Line
from torture.judge import Judge
from torture.ledger import Ledger
from torture.life import FAULTS, LIFE_LIMIT_S, Life
from torture.plan import MIB, Aim, Choice, Moment, Plan, Victims
from torture.sharing import written_by_two
from torture.tally import Tally

TICK_S = 0.01
SHARE_OF_AIMED = 0.6
SHARE_OF_PAIRS = 0.15
MOMENTS: tuple[Moment, ...] = (
    "snapshot is opened",
    "snapshot is opened",
    "snapshot is renamed",
    "snapshot is read",
    "snapshot is read",
    "snapshot is read",
    "snapshot is removed",
    "index commits",
    "index commits",
    "chat commits",
    "chat commits",
)
SELDOM: tuple[Moment, ...] = ("snapshot is read", "snapshot is removed")
VICTIMS: tuple[Victims, ...] = ("worker", "app", "both")
WARM_BYTES = (0, 4 * MIB, 24 * MIB)
COLD_BYTES = (12 * MIB, 96 * MIB)
"""Little, so that states leave and come back."""
SHARE_OF_STARTS = 0.15
"""Of the kills at any moment, those that may come before a model is loaded."""
LONGEST_START_S = 1.5
LONGEST_WORK_S = 3.0
LONGEST_DELAY_S = 0.012
"""About the time in which a snapshot of this run is written and flushed."""


@dataclass(slots=True)
class Home:
    """A user's folders, and everything that was promised in them."""

    path: Path
    choices: tuple[Choice, ...]
    ledger: Ledger
    n_lives: int = 0
    n_log_bytes: int = 0
    journals: Path | None = None
    """Where the lives write down what they do; in the home if None."""

    def plan(self, seed: int) -> Plan:
        """Give the next life in this home."""
        self.n_lives += 1
        for name in ("data", "state", "cache", "config"):
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        journals = self.journals or self.path / "journals"
        journals.mkdir(exist_ok=True)
        journal = journals / f"{self.n_lives}.jsonl"
        return Plan(str(self.path), str(journal), seed, self.choices)


class Rounds:
    """Runs lives in homes and judges what is left of them."""

    def __init__(self, tally: Tally, judge: Judge, rng: random.Random) -> None:
        self._tally = tally
        self._judge = judge
        self._rng = rng

    def run(self, home: Home) -> None:
        """Run one round with kills."""
        n_lives = 2 if self._rng.random() < SHARE_OF_PAIRS else 1
        plans = [self._aimed(home.plan(self._rng.randrange(2**32))) for _ in range(n_lives)]
        self.live(home, plans, kills=True)

    def tidy(self, home: Home) -> None:
        """Live once without a kill; then nothing of the dead may be left."""
        plan = home.plan(self._rng.randrange(2**32))
        self.live(home, [plan], kills=False)
        for path in drafts_of_the_dead(home.path):
            self._tally.blame("leftover", home.path.name, f"{path.name} is still there")

    def live(self, home: Home, plans: Sequence[Plan], *, kills: bool) -> None:
        """Let applications live side by side to their ends, and look at everything."""
        stale = drafts_of_the_dead(Path(plans[0].home))
        lives = [Life(plan, f"{home.path.name}/{Path(plan.journal).stem}") for plan in plans]
        for life in lives:
            if kills:
                self._kill_some_time(life, lives)
        self._wait_for(lives)
        for life in lives:
            life.bury(self._tally)
            for asked in life.answers():
                self._judge.take(asked, life.name)
        if any(life.is_cache_open for life in lives):
            for path in stale:
                if path.exists():
                    self._tally.blame("leftover", lives[0].name, f"{path.name} is still there")
        self._look_at_home(home, lives)

    def _aimed(self, plan: Plan) -> Plan:
        plan = replace(
            plan,
            warm_bytes=self._rng.choice(WARM_BYTES),
            cold_bytes=self._rng.choice(COLD_BYTES),
        )
        if self._rng.random() > SHARE_OF_AIMED:
            return plan
        delay_s = self._rng.choice((0.0, self._rng.uniform(0.0, LONGEST_DELAY_S)))
        moment = self._rng.choice(MOMENTS)
        aim = Aim(
            moment=moment,
            nth=self._rng.randint(1, 1 if moment in SELDOM else 4),
            delay_s=delay_s,
            victims=self._rng.choice(VICTIMS),
        )
        return replace(plan, aim=aim)

    def _kill_some_time(self, life: Life, lives: Sequence[Life]) -> None:
        """Kill at a moment that is uniform in time; later where an aim may strike before."""
        is_aimed = life.plan.aim.moment != "none"
        if not is_aimed and self._rng.random() < SHARE_OF_STARTS:
            wait_s = self._rng.uniform(0.0, LONGEST_START_S)
            self._until(lambda: time.monotonic() - life.started_at > wait_s, lives)
        else:
            self._until(lambda: life.is_cache_open or life.is_over, [life])
            wait_s = self._rng.uniform(0.0, LONGEST_WORK_S) + is_aimed * LONGEST_WORK_S
            end = time.monotonic() + wait_s
            self._until(lambda: time.monotonic() > end or was_struck(life), lives)
        if not life.is_over and not was_struck(life):
            life.strike(self._rng.choice(VICTIMS))

    def _until(self, is_time: "object", lives: Sequence[Life]) -> None:
        assert callable(is_time)
        end = time.monotonic() + LIFE_LIMIT_S
        while not is_time() and time.monotonic() < end:
            for life in lives:
                life.read()
            if all(life.is_over for life in lives):
                return
            time.sleep(TICK_S)

    def _wait_for(self, lives: Sequence[Life]) -> None:
        self._until(lambda: all(life.is_over for life in lives), lives)
        for life in lives:
            if not life.is_over:
                self._tally.blame("hang", life.name, f"not over after {LIFE_LIMIT_S:.0f} s")
                life.strike("both")
                life.process.wait()

    def _look_at_home(self, home: Home, lives: Sequence[Life]) -> None:
        for problem in written_by_two([life.lines for life in lives]):
            self._tally.blame("lock", lives[0].name, problem)
        lines = [line for life in lives for line in life.lines]
        home.ledger.take(sorted(lines, key=when))
        plan = lives[0].plan
        if plan.database.exists():
            self._tally.add("databases opened and checked")
            for problem in home.ledger.broken_promises(plan.database):
                self._tally.blame("database", lives[0].name, problem)
        self._look_at_log(home, plan, lives[0].name)

    def _look_at_log(self, home: Home, plan: Plan, name: str) -> None:
        if not plan.worker_log.exists():
            return
        with plan.worker_log.open("rb") as file:
            file.seek(home.n_log_bytes)
            said = file.read()
        home.n_log_bytes += len(said)
        text = said.decode(errors="replace")
        for fault in FAULTS:
            if fault in text:
                at = text.index(fault)
                self._tally.blame("log", name, f"the worker said {text[at : at + 1200]!r}")


def was_struck(life: Life) -> bool:
    """Tell whether somebody of a life was killed already."""
    return any(life.struck.values())


def when(line: Line) -> int:
    """Give when a line was written."""
    at = line["at"]
    assert isinstance(at, int)
    return at


def drafts_of_the_dead(home: Path) -> list[Path]:
    """Give half-written files of processes that are no more."""
    found = [(path, drafting_process(path)) for path in home.rglob("*.new")]
    return [path for path, pid in found if pid is not None and not psutil.pid_exists(pid)]
