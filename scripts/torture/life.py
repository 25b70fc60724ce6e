"""One application process of a round: started, perhaps killed, and looked at when it is over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from torture.endings import Ends
from torture.journal import Journal, Line, Reader
from torture.oracle import Asked, asked_in
from torture.plan import Plan
from torture.tally import Tally

ROOT = Path(__file__).resolve().parents[2]
LIFE_LIMIT_S = 150.0
END_LIMIT_S = 20.0
"""Time for a worker whose front end died to write down what it holds and end."""
FAULTS = (
    "Traceback (most recent call last)",
    "Fatal Python error",
    "GGML_ASSERT",
    "Segmentation fault",
    "core dumped",
)


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
            kill(pid)

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
                    kill(pid)
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
        for fault in FAULTS:
            if fault in said:
                tally.blame("log", self.name, f"the application said {fault!r}: {self._tail()}")

    def _tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-600:].strip()

    def answers(self) -> list[Asked]:
        """Give what was asked in this life and answered at least in part."""
        return asked_in(self.lines)


def is_worker(pid: int) -> bool:
    """Whether a process is there, alive, and an engine of a torture run."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and "torture.worker" in process.cmdline()
    except psutil.Error:
        return False


def kill(pid: int) -> None:
    """Send SIGKILL; one that is gone already needs none."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
