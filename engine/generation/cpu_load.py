"""How many cores other programs leave, as the operating system counts it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

SAMPLE_S = 0.2
"""Between two looks at what other programs take."""
FULL = 0.9
"""Share of a processor's time from which it is fully taken."""
RUNNING = Path("/proc/loadavg")
"""Where Linux reports how many threads run or wait for a core, as `2/345`."""
N_GLANCES, GLANCE_S = 3, 0.001
"""Looks at an instant, and the time between two: a thread that runs in all of them computes."""


class CpuLoad(Protocol):
    """What other programs take of the processor."""

    def free_now(self) -> float | None:
        """Cores that nobody uses at this instant; None if unknown."""
        ...

    def free(self, n_threads: int) -> float | None:
        """Cores that others left in the last `SAMPLE_S` seconds; None if that is no news.

        Args:
            n_threads: Threads that this program computed with.
        """
        ...


class ProcessorLoad:
    """The load of this machine: all busy time but that of this process.

    Time that the host of a virtual machine takes (steal) counts as others'. An instant has no time
    yet: there the threads that run or wait for a core are counted (Linux only).
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, running: Path = RUNNING
    ) -> None:
        self._clock, self._running = clock, running
        self._n_cores = psutil.cpu_count() or 1
        self._at, self._busy_s, self._own_s = self._read()

    def free_now(self) -> float | None:
        self._at, self._busy_s, self._own_s = self._read()
        n_others = self._others_running()
        return None if n_others is None else self._n_cores - n_others

    def free(self, n_threads: int) -> float | None:
        used = self.used()
        if used is None:
            return None
        return self._n_cores - wanted_cores(*used, n_threads, self._n_cores)

    def used(self) -> tuple[float, float] | None:
        """Cores that others and this process used since the last look; None in `SAMPLE_S` of it."""
        elapsed_s = self._clock() - self._at
        if elapsed_s < SAMPLE_S:
            return None
        at, busy_s, own_s = self._read()
        own = (own_s - self._own_s) / elapsed_s
        others = max((busy_s - self._busy_s) / elapsed_s - own, 0.0)
        self._at, self._busy_s, self._own_s = at, busy_s, own_s
        return others, own

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


def wanted_cores(others: float, own: float, n_threads: int, n_cores: int) -> float:
    """Cores that others would take if they had to wait for none.

    On a processor that is fully taken others got a share beside the `n_threads` of this program.
    """
    if own and own + others > FULL * n_cores:
        return others * max(1.0, n_threads / own)
    return others


def threads_beside(free: float | None, n_threads: int) -> int:
    """Threads to use where so many cores are free, at most `n_threads`; None is unknown."""
    return n_threads if free is None else max(1, min(int(free + 0.5), n_threads))
