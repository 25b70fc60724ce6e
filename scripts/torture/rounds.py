"""Rounds: one or two applications on one home, killed at some moment, then looked at."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from engine.files import drafting_process
from torture.ledger import Ends, Ledger, Tally, written_by_two
from torture.oracle import Asked, Judge, asked_in
from torture.plan import MIB, Aim, Choice, Journal, Line, Moment, Plan, Reader, Victims

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
ROOT = Path(__file__).resolve().parents[2]
LIFE_LIMIT_S = 150.0
END_LIMIT_S = 20.0
"""Time for a worker whose front end died to write down what it holds and end."""
LOG_FAULTS = (
    "Traceback (most recent call last)",
    "Fatal Python error",
    "GGML_ASSERT",
    "Segmentation fault",
    "core dumped",
)


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
        """The next life in this home."""
        self.n_lives += 1
        for name in ("data", "state", "cache", "config"):
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        journals = self.journals or self.path / "journals"
        journals.mkdir(exist_ok=True)
        journal = journals / f"{self.n_lives}.jsonl"
        return Plan(str(self.path), str(journal), seed, self.choices)


class Life:
    """A process, its journal, and who was killed in it."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan = plan
        self.name = name
        self.lines: list[Line] = []
        self._reader = Reader(Path(plan.journal))
        self._own = Journal(Path(plan.journal))
        self._log_path = Path(plan.journal).with_suffix(".log")
        self._log_path.touch()
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "torture.app"],
                env=plan.environment(),
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.started_at = time.monotonic()

    def read(self) -> None:
        """Take in what was written to the journal."""
        self.lines += self._reader.new_lines()

    @property
    def is_over(self) -> bool:
        """Whether the process ended."""
        return self.process.poll() is not None

    @property
    def is_cache_open(self) -> bool:
        """Whether the tiers of a model were open in it."""
        return any(line["kind"] == "cache" for line in self.lines)

    @property
    def workers(self) -> list[int]:
        """The engine's processes, the newest last."""
        return [pid for line in self.lines if isinstance(pid := line.get("pid"), int)
                and line["kind"] == "worker"]  # fmt: skip

    @property
    def struck(self) -> dict[str, set[int]]:
        """Processes that were killed, by their role."""
        found: dict[str, set[int]] = {"app": set(), "worker": set()}
        for line in self.lines:
            pids = line.get("pids")
            if line["kind"] == "struck" and isinstance(pids, dict):
                for role, pid in pids.items():
                    found[role].add(pid)
        return found

    def strike(self, victims: str) -> None:
        """Kill the application, its newest worker, or both, from outside."""
        self.read()
        pids = {}
        if victims in ("worker", "both") and self.workers:
            pids["worker"] = self.workers[-1]
        if victims in ("app", "both"):
            pids["app"] = self.process.pid
        self._own.tell("struck", moment="any", pids=pids)
        for pid in pids.values():
            send_kill(pid)

    def bury(self, tally: Tally) -> None:
        """Look at how everything of it ended, when the application's process is over."""
        self.read()
        self._bury_workers(tally)
        self.read()
        self._count(tally)
        self._look_at_ends(tally)
        self._look_at_logs(tally)

    def _bury_workers(self, tally: Tally) -> None:
        end = time.monotonic() + END_LIMIT_S
        for pid in self.workers:
            while is_worker(pid):
                if time.monotonic() > end:
                    tally.blame("hang", self.name, f"worker {pid} outlives its front end")
                    send_kill(pid)
                    break
                time.sleep(0.01)

    def _count(self, tally: Tally) -> None:
        tally.add("lives")
        for line in self.lines:
            match line:
                case {"kind": "struck", "pids": dict(pids), "moment": moment} if pids:
                    tally.add_kill(str(moment), " and ".join(sorted(pids)))
                case {"kind": "step", "action": action}:
                    tally.add(f"step: {action}")
                case {"kind": "added" | "finished"}:
                    tally.add("promises of the store")
                case {"kind": "loaded"}:
                    tally.add("models loaded")
                case {"kind": "note", "is_problem": True, "text": text}:
                    tally.add("problems noted by the cache")
                    print(f"  note in {self.name}: {text}")
                case {"kind": "refused"}:
                    tally.add("steps that were refused")
                case _:
                    pass
        self._count_cache(tally)

    def _count_cache(self, tally: Tally) -> None:
        """Add the last counts of each worker."""
        counts: list[dict[str, int]] = []
        for line in self.lines:
            if line["kind"] == "worker":
                counts.append({})
            elif line["kind"] == "cache" and counts and isinstance(line["counts"], dict):
                counts[-1] = line["counts"]
        for each in counts:
            for what, n in each.items():
                tally.add(f"cache: {what}", n)

    def _look_at_ends(self, tally: Tally) -> None:
        ends = Ends(self.process.pid, self.process.returncode, self.struck)
        for kind, what in ends.wrong(self.lines):
            tally.blame(kind, self.name, f"{what} {self._tail()}".strip())
        for line in self.lines:
            if ends.is_late(line):
                tally.add("workers that took too long to write down what they held")

    def _look_at_logs(self, tally: Tally) -> None:
        said = self._log_path.read_text(errors="replace")
        for fault in LOG_FAULTS:
            if fault in said:
                tally.blame("log", self.name, f"the application said {fault!r}: {self._tail()}")

    def _tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-600:].strip()

    def answers(self) -> list[Asked]:
        """What was asked in this life and answered at least in part."""
        return asked_in(self.lines)


def is_worker(pid: int) -> bool:
    """Whether a process is there, alive, and an engine of a torture run."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "torture.worker" in process.cmdline()
    except psutil.Error:
        return False


def send_kill(pid: int) -> None:
    """Send SIGKILL; one that is gone already needs none."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


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
        for fault in LOG_FAULTS:
            if fault in text:
                at = text.index(fault)
                self._tally.blame("log", name, f"the worker said {text[at : at + 1200]!r}")


def was_struck(life: Life) -> bool:
    """Whether somebody of a life was killed already."""
    return any(life.struck.values())


def when(line: Line) -> int:
    """When a line was written."""
    at = line["at"]
    assert isinstance(at, int)
    return at


def drafts_of_the_dead(home: Path) -> list[Path]:
    """Half-written files of processes that are no more."""
    found = [(path, drafting_process(path)) for path in home.rglob("*.new")]
    return [path for path, pid in found if pid is not None and not psutil.pid_exists(pid)]
