"""Continuous batching: the steps of all running replies are computed together.

A reply's loop yields events and, to use the model, a `Step`, and is sent the result. So the steps
of several replies share a batch, new prompts are prefilled in chunks between them, and finished
replies leave at once (iteration-level scheduling: Yu et al. 2022, Orca, OSDI, section 3).
"""

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
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
    assert given is not None, "a yielded step is answered by its result"
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
    turn: int = 0
    """Number of the last batch with a step of it."""

    def take(self) -> Iterator[Event]:
        """Remove and yield its events."""
        while self.events:
            yield self.events.popleft()


class Scheduler:
    """Runs the replies of one context step by step, from one thread."""

    def __init__(
        self,
        backend: Backend,
        recall: Recall,
        *,
        stop: Callable[[], None],
        clear: Callable[[], None],
    ) -> None:
        """Create a scheduler without replies.

        Args:
            backend: The backend of all replies.
            recall: For the measured prefill speed.
            stop: Aborts the running computation, from any thread.
            clear: Clears an abort.
        """
        self._backend = backend
        self._recall = recall
        self._stop, self._clear = stop, clear
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
        if not self._waiting and len(self._under_way) == 1:
            return self._step_alone(self._under_way[0])
        n_before = len(self._waiting)
        self._admit()
        ready = [one for one in self._under_way if not one.events]
        idle = [one for one in ready if one.next_step is None]
        for one in idle:
            self._advance(one)
        if ready and not idle:
            self._compute(ready)
        return bool(ready) or len(self._waiting) != n_before

    def _step_alone(self, one: Generation) -> bool:
        """As `step`, for a single reply."""
        if one.events:
            return False
        if one.next_step is None:
            self._advance(one)
        else:
            self._compute((one,))
        return True

    def end(self, generation: Generation) -> None:
        """Remove a reply, finished or not."""
        if not generation.is_over:
            self._compute_for((generation,))
            generation.running.close()
            self._finish(generation)

    def _admit(self) -> None:
        """Begin waiting replies, in the order of the requests, while sequences are free."""
        for one in tuple(self._waiting):
            is_free = len(self._under_way) < self._backend.n_sequences
            if is_free or one.cancellation.is_cancelled:  # a cancelled one needs no sequence
                self._waiting.remove(one)
                self._under_way.append(one)
                self._advance(one)

    def _advance(self, one: Generation) -> None:
        """Run a reply's loop to its next event, step or end."""
        self._compute_for((one,))
        try:
            self._backend.use_adapters(one.loop.adapters)
        except EngineError as error:
            self._throw(one, error)
        else:
            self._take(one)

    def _compute(self, ready: Sequence[Generation]) -> None:
        """Compute the steps of some replies in one batch, and continue each."""
        chosen = self._chosen(ready)
        if not chosen:
            return
        self._compute_for(chosen)
        self._n_batches += 1
        lengths = [
            len(one.next_step.sequence.tokens) for one in chosen if one.next_step is not None
        ]
        watch = Stopwatch()
        try:
            self._backend.use_adapters(chosen[0].loop.adapters)
            forwards = self._forwards(chosen)
        except EngineError as error:
            self._recover(chosen, lengths, error)
            return
        is_alone, n_shared, elapsed_s = len(chosen) == 1, _n_shared(chosen), watch.total()
        for one, forward in zip(chosen, forwards, strict=True):
            one.next_step, one.turn = None, self._n_batches
            self._take(one, Computed(forward.logits, is_alone, n_shared, elapsed_s))
            n_shared = 0

    def _forwards(self, chosen: Sequence[Generation]) -> list[Forward]:
        steps = [one.next_step for one in chosen if one.next_step is not None]
        return [_alone(*steps)] if len(steps) == 1 else self._backend.verify_batch(steps)

    def _chosen(self, ready: Sequence[Generation]) -> tuple[Generation, ...]:
        """The replies of the next batch: those that waited longest, as many as fit."""
        if len(ready) == 1 and not ready[0].cancellation.is_cancelled:
            return (ready[0],)
        chosen: list[Generation] = []
        n_rows = n_tokens = n_unread = 0
        n_most_unread = self.chunk if _decodes(ready) else self._backend.n_batch
        for one in sorted(ready, key=lambda one: one.turn):
            step = one.next_step
            assert step is not None, "a ready reply has a step to compute"
            if one.cancellation.is_cancelled:
                self._throw(one, DecodeAborted("stopped between two decode steps"))
                continue
            if chosen and one.loop.adapters != chosen[0].loop.adapters:
                continue  # adapters apply to a whole batch
            n_rows_then = n_rows + len(step.tokens)
            n_tokens_then = n_tokens + step.n_tokens
            n_unread_then = n_unread + len(step.unread)
            fits = n_rows_then <= self._backend.n_rows
            fits = fits and (n_tokens_then <= self._backend.n_batch or n_tokens_then == n_rows_then)
            fits = fits and (not step.unread or not n_unread or n_unread_then <= n_most_unread)
            if fits or not chosen:
                chosen.append(one)
                n_rows, n_tokens, n_unread = n_rows_then, n_tokens_then, n_unread_then
        return tuple(chosen)

    def _recover(
        self, chosen: Sequence[Generation], lengths: Sequence[int], error: EngineError
    ) -> None:
        """After a failed batch, retry each step alone, so that only the faulty reply fails."""
        if len(chosen) == 1:
            self._throw(chosen[0], error)
            return
        for one, length in zip(chosen, lengths, strict=True):
            assert one.next_step is not None
            sequence = one.next_step.sequence
            if len(sequence.tokens) >= length and sequence.can_crop(length):
                sequence.crop(length)
            else:
                self._throw(one, error)
        for one in chosen:
            if one.next_step is not None:
                self._compute((one,))

    def _throw(self, one: Generation, error: EngineError) -> None:
        one.next_step = None
        self._take(one, error)

    def _take(self, one: Generation, given: Computed | EngineError | None = None) -> None:
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
                self._clear()
                self._stop_unwanted()

    def _on_cancel(self) -> None:
        with self._stopping:
            self._stop_unwanted()

    def _stop_unwanted(self) -> None:
        """Abort the computation if all of its replies are cancelled."""
        if all(one.cancellation.is_cancelled for one in self._computing):
            self._is_stopped = True
            self._stop()


def _alone(step: Step) -> Forward:
    """Compute a single step."""
    if not step.tokens:
        step.sequence.prefill(step.unread)
        return NOTHING
    return step.sequence.verify(step.tokens, unread=step.unread)


def _decodes(ready: Sequence[Generation]) -> bool:
    """Whether any of the replies decodes rather than prefills."""
    return any(one.next_step is not None and not one.next_step.unread for one in ready)


def _n_shared(chosen: Sequence[Generation]) -> int:
    """Rows of a batch of several replies without prefill; 0 for other batches."""
    steps = [one.next_step for one in chosen if one.next_step is not None]
    if len(steps) < 2 or any(step.unread for step in steps):
        return 0
    return sum(len(step.tokens) for step in steps)
