"""Number of llama.cpp's threads: the cores that other programs leave free.

The threads of a step synchronize at every operation, so one core shared with another program stalls
all of them: on two cores beside one busy process two threads decode at a fiftieth of the speed of
one thread (benchmarks/results/threads.md).
"""

import time
from collections.abc import Callable
from math import inf

from engine.backends.base import Backend
from engine.events import ThreadsChanged
from engine.generation.cpu_load import ProcessorLoad, threads_beside

MIN_WAIT_S, MAX_WAIT_S = 0.4, 30.0
"""Time that cores must be free before they are used; doubles each time others use them again."""
LONG_BATCH = 64
"""Prompt tokens from which a batch uses the threads for prompts."""
OTHERS, FREE = "other programs use some cores", "cores became free"


class FreeCores:
    """The number of cores to use: lowered at once, raised after a delay.

    Args:
        n_cores: Maximum, used on an idle machine.
        clock: Seconds.
    """

    def __init__(self, n_cores: int, clock: Callable[[], float]) -> None:
        self.n = self._n_usual = n_cores
        self._clock = clock
        self._wait_s = MIN_WAIT_S
        self._changed_at = clock()
        self._free_since = inf

    def begin(self, free: float) -> None:
        """Use the cores that are free at the start of a reply."""
        self._set(threads_beside(free, self._n_usual))

    def add(self, free: float) -> None:
        """Record the present number of free cores."""
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
        follows: Whether the numbers for steps and for prompts follow the load or are fixed.
        load: Load by other programs; None reads it from the operating system.
        clock: Seconds.
    """

    def __init__(
        self,
        backends: tuple[Backend, ...],
        *,
        follows: tuple[bool, bool] = (True, True),
        load: ProcessorLoad | None = None,
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
        """Threads of a decode or verify step."""
        return min(self._usual[0], self._cores.n) if self._follows[0] else self._usual[0]

    @property
    def n_prompt(self) -> int:
        """Threads of a prompt batch."""
        return min(self._usual[1], self._cores.n) if self._follows[1] else self._usual[1]

    def begin(self) -> None:
        """Set the threads by the load at the start of a reply."""
        free = self._load.free_now()
        if free is not None and any(self._follows):
            self._cores.begin(free)
        self.use_for_steps()

    def follow(self) -> ThreadsChanged | None:
        """Update the numbers from the load; return an event if they changed."""
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
        """Set the threads of a prompt batch; a short one uses those of steps."""
        self._set(self.n_decode if n_tokens < LONG_BATCH else self.n_prompt)

    def use_for_steps(self) -> None:
        """Set the threads of steps; llama.cpp would treat the rows of a draft as a prompt."""
        self._set(self.n_decode)

    def _set(self, n_threads: int) -> None:
        if n_threads != self._n_set:
            self._n_set = n_threads
            for backend in self._backends:
                backend.set_threads(n_threads)
