"""Number of cores that other programs leave free, from the operating system's counters."""

import time
from collections.abc import Callable
from pathlib import Path

import psutil

SAMPLE_S = 0.2
"""Minimum interval of two samples of the load."""
FULL = 0.9
"""Utilization from which a processor counts as full."""
RUNNING = Path("/proc/loadavg")
"""Linux's number of threads that run or wait for a core, as in `2/345`."""
N_GLANCES, GLANCE_S = 3, 0.001
"""Readings of RUNNING and their interval: the minimum excludes short-lived threads."""


class ProcessorLoad:
    """Load of this machine: all busy time except this process's.

    Time that a virtual machine's host takes (steal) counts as others'. For an instant, the threads
    that run or wait for a core are counted (Linux only).
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, running: Path = RUNNING
    ) -> None:
        self._clock, self._running = clock, running
        self._n_cores = psutil.cpu_count() or 1
        self._at, self._busy_s, self._own_s = self._read()

    def free_now(self) -> float | None:
        """Cores that are idle at this instant; None if unknown."""
        self._at, self._busy_s, self._own_s = self._read()
        n_others = self._others_running()
        return None if n_others is None else self._n_cores - n_others

    def free(self, n_threads: int) -> float | None:
        """Cores not used by others since the last sample; None within `SAMPLE_S` of it.

        `n_threads` are the threads that this program used.
        """
        used = self.used()
        if used is None:
            return None
        return self._n_cores - wanted_cores(*used, n_threads, self._n_cores)

    def used(self) -> tuple[float, float] | None:
        """Cores used by others and by this process since the last sample; None in `SAMPLE_S`."""
        elapsed_s = self._clock() - self._at
        if elapsed_s < SAMPLE_S:
            return None
        at, busy_s, own_s = self._read()
        own = (own_s - self._own_s) / elapsed_s
        others = max((busy_s - self._busy_s) / elapsed_s - own, 0.0)
        self._at, self._busy_s, self._own_s = at, busy_s, own_s
        return others, own

    def _others_running(self) -> int | None:
        """Other threads that run or wait for a core: the minimum of a few readings."""
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
        # `user` and `nice` already include guest time.
        counted = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        return self._clock(), counted - idle_s, time.process_time()


def wanted_cores(others: float, own: float, n_threads: int, n_cores: int) -> float:
    """Cores that others would use without contention.

    On a full processor they got only a share beside this program's `n_threads`.
    """
    if own and own + others > FULL * n_cores:
        return others * max(1.0, n_threads / own)
    return others


def threads_beside(free: float | None, n_threads: int) -> int:
    """Threads to use if `free` cores (None: unknown) are free, 1 to `n_threads`."""
    return n_threads if free is None else max(1, min(int(free + 0.5), n_threads))
