"""How many threads llama.cpp computes with: as many as other programs leave cores.

The threads of a step wait for one another at every operation, so one core that is shared with
another program stops all of them: on two cores beside one busy process two threads decode at a
fiftieth of the speed of one thread (benchmarks/results/threads.md).
"""

import time
from collections.abc import Callable
from math import inf

from engine.backends.base import Backend
from engine.events import ThreadsChanged
from engine.generation.cpu_load import CpuLoad, ProcessorLoad, threads_beside

MIN_WAIT_S, MAX_WAIT_S = 0.4, 30.0
"""How long cores are free before threads come back; doubles each time others take them again."""
LONG_BATCH = 64
"""Tokens of a prompt from which a batch is computed with the threads for prompts."""
OTHERS, FREE = "other programs use cores", "cores became free"


class FreeCores:
    """The number of cores to use, at most `n_cores`: fewer at once, more after a while.

    Args:
        n_cores: Used on a free machine.
        clock: Seconds.
    """

    def __init__(self, n_cores: int, clock: Callable[[], float]) -> None:
        self.n = self._n_usual = n_cores
        self._clock = clock
        self._wait_s = MIN_WAIT_S
        self._changed_at = clock()
        self._free_since = inf

    def begin(self, free: float) -> None:
        """Use what is free at this instant, as a reply begins."""
        self._set(threads_beside(free, self._n_usual))

    def add(self, free: float) -> None:
        """Follow the cores that others leave now."""
        now, target = self._clock(), threads_beside(free, self._n_usual)
        if target < self.n:
            recovered = now - self._changed_at > MAX_WAIT_S
            self._wait_s = MIN_WAIT_S if recovered else min(2 * self._wait_s, MAX_WAIT_S)
            self._set(target)
        elif target == self.n:
            self._free_since = inf
        elif self._free_since == inf:
            self._free_since = now
        elif now - self._free_since >= self._wait_s:
            self._set(target)

    def _set(self, n: int) -> None:
        self.n, self._changed_at, self._free_since = n, self._clock(), inf


class Threads:
    """The threads of a session's models, for decode steps and for prompts.

    Args:
        backends: The target, and the draft model if there is one: both use the same numbers.
        follows: Whether the numbers for steps and for prompts follow the load; else they are fixed.
        load: What other programs take; None asks the operating system.
        clock: Seconds.
    """

    def __init__(
        self,
        backends: tuple[Backend, ...],
        *,
        follows: tuple[bool, bool] = (True, True),
        load: CpuLoad | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backends, self._follows = backends, follows
        self._usual = backends[0].n_threads
        self._load = ProcessorLoad(clock) if load is None else load
        self._cores = FreeCores(max(self._usual), clock)
        self._reported = ThreadsChanged(*self._usual)
        self._n_set = 0

    @property
    def n_decode(self) -> int:
        """Threads of the next step, with or without a draft."""
        return min(self._usual[0], self._cores.n) if self._follows[0] else self._usual[0]

    @property
    def n_prompt(self) -> int:
        """Threads of the next batch of a prompt."""
        return min(self._usual[1], self._cores.n) if self._follows[1] else self._usual[1]

    def begin(self) -> None:
        """Start a reply with the threads that the load of this instant leaves."""
        free = self._load.free_now()
        if free is not None and any(self._follows):
            self._cores.begin(free)
        self.use_for_steps()

    def follow(self) -> ThreadsChanged | None:
        """Follow the load between two batches; an event if the numbers changed."""
        free = self._load.free(self._n_set) if any(self._follows) else None
        if free is not None:
            self._cores.add(free)
        before, numbers = self._reported, (self.n_decode, self.n_prompt)
        if numbers == (before.n_decode, before.n_prefill):
            return None
        is_less = numbers < (before.n_decode, before.n_prefill)
        self._reported = ThreadsChanged(*numbers, reason=OTHERS if is_less else FREE)
        return self._reported

    def use_for_prompt(self, n_tokens: int) -> None:
        """Set the threads of a batch of a prompt; a short one is computed as steps are."""
        self._set(self.n_decode if n_tokens < LONG_BATCH else self.n_prompt)

    def use_for_steps(self) -> None:
        """Set the threads of steps: llama.cpp would take the rows of a draft for a prompt."""
        self._set(self.n_decode)

    def _set(self, n_threads: int) -> None:
        if n_threads != self._n_set:
            self._n_set = n_threads
            for backend in self._backends:
                backend.set_threads(n_threads)
