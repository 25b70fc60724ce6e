"""Continuous batching: the steps of all running replies are computed together.

A reply's loop yields events and, to use the model, a `Step`, and is sent the result. So the steps
of several replies share a batch, new prompts are prefilled in chunks between them, and finished
replies leave at once (iteration-level scheduling: Yu et al. 2022, Orca, OSDI, section 3).
"""

import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from engine.backends.base import Backend, Forward, Logits, Step
from engine.cache.recall import Recall
from engine.clock import Stopwatch
from engine.errors import DecodeAborted, EngineError
from engine.events import Event
from engine.requests import Cancellation

if TYPE_CHECKING:
    from engine.generation.loop import ReplyLoop

CHUNK_S = 0.1
"""Time that a prompt chunk may add to a step in which other replies decode."""
CHUNK = 64
"""Tokens of such a chunk before the prefill speed is known."""
MIN_CHUNK = 16
NOTHING = Forward(np.empty((0, 0), np.float32))
"""Result of a prompt chunk."""


@dataclass(frozen=True, slots=True)
class Computed:
    """Result of a step."""

    logits: Logits
    """`[n_rows, n_vocab]`, valid until the loop yields again."""
    is_alone: bool
    """Whether no other reply's step was in the batch, so that its time is this step's."""
    n_shared: int = 0
    """Rows of a batch of several replies without prefill, reported to one of them; otherwise 0."""
    elapsed_s: float = 0.0
    """Time of the batch."""


Item = Event | Step


def compute_step(step: Step) -> Generator[Step, Computed | None, Computed]:
    """Yield a step and return its result."""
    given = yield step
    assert given is not None
    return given


@dataclass(slots=True, eq=False)
class Generation:
    """A reply in the scheduler: its events and state."""

    loop: "ReplyLoop"
    cancellation: Cancellation
    running: Generator[Item, Computed | None, None]
    events: deque[Event] = field(default_factory=deque)
    """Events not consumed yet; the reply pauses until they are."""
    fault: EngineError | None = None
    """The error that ended it."""
    is_over: bool = False
    next_step: Step | None = None
    """The next step to compute."""
    last_batch: int = 0
    """Number of the last batch with a step of it."""

    def take(self) -> Iterator[Event]:
        """Remove and yield its events."""
        while self.events:
            yield self.events.popleft()


class Scheduler:
    """Runs the replies of one context step by step, from one thread."""

    def __init__(self, backends: Sequence[Backend], recall: Recall) -> None:
        """Create a scheduler without replies.

        Args:
            backends: The target, and the draft model if there is one: both can be aborted.
            recall: For the measured prefill speed.
        """
        self._backends, self._backend, self._recall = backends, backends[0], recall
        self._under_way: list[Generation] = []
        self._waiting: list[Generation] = []
        self._computing: tuple[Generation, ...] = ()
        """The replies that an abort would stop."""
        self._is_stopped = False
        self._stopping = threading.Lock()
        """Guards `_computing` and `_is_stopped`: a late abort must not stop other replies."""
        self._n_batches = 0

    @property
    def n_replies(self) -> int:
        """Running and waiting replies."""
        return len(self._under_way) + len(self._waiting)

    @property
    def chunk(self) -> int:
        """Prompt tokens per batch."""
        n_batch = self._backend.n_batch
        if len(self._under_way) < 2:
            return n_batch
        token_s = self._recall.rate.seconds_of(1)
        n_tokens = CHUNK if not token_s else int(CHUNK_S / token_s)
        n_beside = max(n_batch - self._backend.n_rows, n_batch // 2, 1)
        return min(max(n_tokens, MIN_CHUNK), n_beside)

    @property
    def n_rows(self) -> int:
        """Rows of logits per reply, so that all replies' steps fit in one batch."""
        return max(1, self._backend.n_rows // max(1, len(self._under_way)))

    def add(self, loop: "ReplyLoop", cancellation: Cancellation) -> Generation:
        """Queue a reply; it begins when a sequence is free, in the order of the requests."""
        generation = Generation(loop, cancellation, loop.run())
        self._waiting.append(generation)
        cancellation.attach(self._on_cancel)
        return generation

    def step(self) -> bool:
        """Advance every reply without pending events, or compute the steps that all of them need.

        Returns:
            Whether anything was done; False if all replies have pending events.
        """
        n_before = len(self._waiting)
        paused = {each for each in self._under_way if each.events} if n_before else ()
        for one in tuple(self._waiting):  # in the order of the requests
            going_on = (each for each in self._under_way if each not in paused)
            is_free = len(self._under_way) < self._backend.n_sequences and not any(
                one.loop.can_copy(each.loop) for each in going_on
            )
            if one.cancellation.is_cancelled or is_free:  # a cancelled one needs no sequence
                self._waiting.remove(one)
                self._under_way.append(one)
                self._advance(one)
        ready = [one for one in self._under_way if not one.events]
        idle = [one for one in ready if one.next_step is None]
        for one in idle:
            self._advance(one)
        if ready and not idle:
            self._compute(ready)
        return bool(ready) or len(self._waiting) != n_before

    def end(self, generation: Generation) -> None:
        """Remove a reply, finished or not."""
        if not generation.is_over:
            self._compute_for((generation,))
            generation.running.close()
            self._finish(generation)

    def _advance(self, one: Generation) -> None:
        """Run a reply's loop to its next event, step or end."""
        self._compute_for((one,))
        try:
            self._backend.use_adapters(one.loop.adapters)
        except EngineError as error:
            self._throw(one, error)
        else:
            self._send(one)

    def _compute(self, ready: Sequence[Generation]) -> None:
        """Compute the steps of some replies in one batch, and continue each."""
        chosen = self._chosen(ready)
        if not chosen:
            return
        self._compute_for(chosen)
        self._n_batches += 1
        steps = _steps(chosen)
        lengths = [len(step.sequence.tokens) for step in steps]
        watch, is_alone, step = Stopwatch(), len(steps) == 1, steps[0]
        try:
            self._backend.use_adapters(chosen[0].loop.adapters)
            if not is_alone:
                forwards = self._backend.verify_batch(steps)
            elif step.tokens:
                forwards = [step.sequence.verify(step.tokens, unread=step.unread)]
            else:
                step.sequence.prefill(step.unread)
                forwards = [NOTHING]
        except EngineError as error:
            self._recover(chosen, lengths, error)
            return
        has_prefill = any(step.unread for step in steps)
        n_shared = 0 if is_alone or has_prefill else sum(len(step.tokens) for step in steps)
        elapsed_s = watch.total()
        for one, forward in zip(chosen, forwards, strict=True):
            one.next_step, one.last_batch = None, self._n_batches
            self._send(one, Computed(forward.logits, is_alone, n_shared, elapsed_s))
            n_shared = 0

    def _chosen(self, ready: Sequence[Generation]) -> tuple[Generation, ...]:
        """The replies of the next batch: those that waited longest, as many as fit."""
        if len(ready) == 1 and not ready[0].cancellation.is_cancelled:
            return (ready[0],)
        chosen: list[Generation] = []
        decodes = any(not step.unread for step in _steps(ready))
        batch = _Batch(self._backend, self.chunk if decodes else self._backend.n_batch)
        for one in sorted(ready, key=lambda one: one.last_batch):
            if one.cancellation.is_cancelled:
                self._throw(one, DecodeAborted("the reply was stopped between two decode steps"))
                continue
            if chosen and one.loop.adapters != chosen[0].loop.adapters:
                continue  # adapters apply to a whole batch
            (step,) = _steps((one,))
            if batch.fits(step) or not chosen:
                batch.add(step)
                chosen.append(one)
        return tuple(chosen)

    def _recover(
        self, chosen: Sequence[Generation], lengths: Sequence[int], error: EngineError
    ) -> None:
        """After a failed batch, retry each step alone, so that only the faulty reply fails."""
        if len(chosen) == 1:
            self._throw(chosen[0], error)
            return
        for one, step, length in zip(chosen, _steps(chosen), lengths, strict=True):
            if len(step.sequence.tokens) >= length and step.sequence.can_crop(length):
                step.sequence.crop(length)
            else:
                self._throw(one, error)
        for one in chosen:
            if one.next_step is not None:
                self._compute((one,))

    def _throw(self, one: Generation, error: EngineError) -> None:
        one.next_step = None
        self._send(one, error)

    def _send(self, one: Generation, given: Computed | EngineError | None = None) -> None:
        """Send a result or error to a loop, and run it to its next item."""
        try:
            if isinstance(given, EngineError):
                item = one.running.throw(given)
            else:
                item = one.running.send(given)
        except StopIteration:
            self._finish(one)
        except EngineError as error:
            one.fault = error
            self._finish(one)
        else:
            if isinstance(item, Step):
                one.next_step = item
            else:
                one.events.append(item)

    def _finish(self, one: Generation) -> None:
        one.is_over, one.next_step = True, None
        one.cancellation.detach()
        for generations in (self._under_way, self._waiting):
            if one in generations:
                generations.remove(one)

    def _compute_for(self, generations: tuple[Generation, ...]) -> None:
        """Set the replies being computed, and clear an abort that was meant for others."""
        if self._computing == generations:
            return  # a running abort is meant for them
        with self._stopping:
            self._computing = generations
            if self._is_stopped:
                self._is_stopped = False
                for backend in self._backends:
                    backend.clear_abort()
                self._stop_unwanted()

    def _on_cancel(self) -> None:
        with self._stopping:
            self._stop_unwanted()

    def _stop_unwanted(self) -> None:
        """Abort the computation if all of its replies are cancelled."""
        if all(one.cancellation.is_cancelled for one in self._computing):
            self._is_stopped = True
            for backend in self._backends:
                backend.abort()


def _steps(generations: Sequence[Generation]) -> list[Step]:
    return [one.next_step for one in generations if one.next_step is not None]


class _Batch:
    """The size of a batch of several steps, which has at most `n_most_unread` prompt tokens."""

    def __init__(self, backend: Backend, n_most_unread: int) -> None:
        self._backend, self._n_most_unread = backend, n_most_unread
        self._n_rows = self._n_tokens = self._n_unread = 0

    def fits(self, step: Step) -> bool:
        """Whether a step may be added."""
        n_rows, n_tokens = self._n_rows + len(step.tokens), self._n_tokens + step.n_tokens
        n_unread = self._n_unread + len(step.unread)
        is_short = not step.unread or not self._n_unread or n_unread <= self._n_most_unread
        fits_tokens = n_tokens <= self._backend.n_batch or n_tokens == n_rows
        return n_rows <= self._backend.n_rows and fits_tokens and is_short

    def add(self, step: Step) -> None:
        """Add a step."""
        self._n_rows += len(step.tokens)
        self._n_tokens += step.n_tokens
        self._n_unread += len(step.unread)
