"""What this program and others take of the processor, as the operating system counts it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

SAMPLE_S = 0.2
"""Between two looks at what other programs take."""
FULL = 0.9
"""Share of a processor's time from which it is fully taken."""
RUNNING = Path("/proc/loadavg")
"""Where Linux tells how many threads run or wait for a core, as `2/345`."""
N_GLANCES, GLANCE_S = 3, 0.001
"""Looks at who runs at this instant, and the time between two: who does in all of them computes."""


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


class CpuLoad(Protocol):
    """What others take of the processor."""

    def shares(self) -> Shares | None:
        """Of the last moment of computing; None while unknown."""
        ...

    def restart(self) -> Shares | None:
        """Forget what was before, and look at this instant; None where it cannot be seen."""
        ...


class ProcessorLoad:
    """The load as the operating system counts it: all busy time but this process's own.

    Time that a virtual machine's host takes (steal) counts as others'. An instant has no time yet:
    there the threads count that are about to run (Linux only).
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, running: Path = RUNNING
    ) -> None:
        self._clock, self._running = clock, running
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

    def restart(self) -> Shares | None:
        self._at, self._busy_s, self._own_s = self._read()
        self._shares = None
        n_others = self._others_running()
        return None if n_others is None else Shares(self._n_cores, 0.0, n_others)

    def _others_running(self) -> int | None:
        """Threads but this one that run or wait for a core, in each of a few looks."""
        fewest = None
        for _ in range(N_GLANCES):
            try:
                counted = self._running.read_text("ascii").split()[3].partition("/")[0]
                n_others = max(int(counted) - 1, 0)
            except (OSError, ValueError, IndexError):
                return None
            fewest = n_others if fewest is None else min(fewest, n_others)
            if not fewest:
                break
            time.sleep(GLANCE_S)
        return fewest

    def _read(self) -> tuple[float, float, float]:
        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        # What guests and their hosts use is a part of `user` and `nice` already.
        counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return self._clock(), counted - idle_s, time.process_time()
