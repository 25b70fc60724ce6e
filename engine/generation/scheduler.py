"""Continuous batching: the steps of all replies under way, computed together.

The loop of a reply asks for its forwards instead of calling them. It yields events and, where it
needs the model, a `Step`; it is sent what that gave. So the steps of several replies go into one
batch, a new prompt is read in chunks between them, and one that is over leaves at once (iteration
level scheduling: Yu et al. 2022, Orca, OSDI, section 3).
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
"""Time that a stretch of a prompt may add to a step in which other replies decode."""
CHUNK = 64
"""Tokens of such a stretch before the speed of prompts is known."""
MIN_CHUNK = 16
NOTHING = Forward(np.empty((0, 0), np.float32))
"""What a stretch of a prompt gives."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What a step gave."""

    logits: Logits
    """`[n_rows, n_vocab]`, valid until the loop yields again."""
    is_alone: bool
    """Whether no other reply's step was in the batch, so that its time is this step's."""
    n_shared: int = 0
    """Rows of the batch, where it held those of several replies and nothing else: one of them is
    told, and learns from it; 0 for all others."""
    elapsed_s: float = 0.0
    """Time of the batch."""


Item = Event | Step


def compute_step(step: Step) -> Generator[Step, Computed | None, Computed]:
    """What a step gives, within a loop."""
    given = yield step
    assert given is not None, "who yields a step is sent what it gave"
    return given


@dataclass(slots=True, eq=False)
class Generation:
    """One reply from its request to its end: what it tells, and how it ended."""

    loop: "ReplyLoop"
    cancellation: Cancellation
    running: Generator[Item, Computed | None, None]
    events: deque[Event] = field(default_factory=deque)
    """Told and not taken yet; while there are any, it stands still."""
    fault: EngineError | None = None
    """Why it failed."""
    is_over: bool = False
    wish: Step | None = None
    """What it needs computed next."""
    turn: int = 0
    """When a step of it was computed last, in batches."""

    def take(self) -> Iterator[Event]:
        """The events that it has told, each once."""
        while self.events:
            yield self.events.popleft()


class Scheduler:
    """Takes the replies of one context on, step by step; from one thread."""

    def __init__(
        self,
        backend: Backend,
        recall: Recall,
        *,
        stop: Callable[[], None],
        clear: Callable[[], None],
    ) -> None:
        """Without a reply.

        Args:
            backend: Of all of them.
            recall: Knows how fast prompts are read.
            stop: Aborts what is being computed, from any thread.
            clear: Lets what follows run again.
        """
        self._backend = backend
        self._recall = recall
        self._stop, self._clear = stop, clear
        self._under_way: list[Generation] = []
        self._waiting: list[Generation] = []
        self._computing: tuple[Generation, ...] = ()
        """Whose work an abort would stop."""
        self._is_stopped = False
        self._stopping = threading.Lock()
        """Guards those two: a late abort must not stop another reply's work."""
        self._n_batches = 0

    @property
    def n_replies(self) -> int:
        """Replies that are not over, those that wait included."""
        return len(self._under_way) + len(self._waiting)

    @property
    def chunk(self) -> int:
        """Tokens of a prompt that go into one batch."""
        n_batch = self._backend.n_batch
        if len(self._under_way) < 2:
            return n_batch
        token_s = self._recall.rate.seconds_of(1)
        n_tokens = CHUNK if not token_s else int(CHUNK_S / token_s)
        n_beside = max(n_batch - self._backend.n_rows, n_batch // 2, 1)
        return min(max(n_tokens, MIN_CHUNK), n_beside)

    @property
    def n_rows(self) -> int:
        """Rows of logits that each reply may ask for, so that the steps of all fit one batch."""
        return max(1, self._backend.n_rows // max(1, len(self._under_way)))

    def add(self, loop: "ReplyLoop", cancellation: Cancellation) -> Generation:
        """A reply that begins as soon as there is room for it, in the order of the requests."""
        generation = Generation(loop, cancellation, loop.run())
        self._waiting.append(generation)
        cancellation.attach(self._on_cancel)
        return generation

    def step(self) -> bool:
        """Take every reply whose events were taken to its next event, or compute what all need.

        Returns:
            Whether anything was done; False where all have events that nobody takes.
        """
        if not self._waiting and len(self._under_way) == 1:
            return self._step_alone(self._under_way[0])
        n_before = len(self._waiting)
        self._admit()
        ready = [one for one in self._under_way if not one.events]
        idle = [one for one in ready if one.wish is None]
        for one in idle:
            self._advance(one)
        if ready and not idle:
            self._compute(ready)
        return bool(ready) or len(self._waiting) != n_before

    def _step_alone(self, one: Generation) -> bool:
        """As `step`, where there is nobody to wait for or to share with."""
        if one.events:
            return False
        if one.wish is None:
            self._advance(one)
        else:
            self._compute((one,))
        return True

    def end(self, generation: Generation) -> None:
        """Let go of a reply, whether it is over or not."""
        if not generation.is_over:
            self._compute_for((generation,))
            generation.running.close()
            self._finish(generation)

    def _admit(self) -> None:
        """Begin replies that wait, in the order of the requests, while sequences are free."""
        for one in tuple(self._waiting):
            is_free = len(self._under_way) < self._backend.n_sequences
            if is_free or one.cancellation.is_cancelled:  # the latter ends without a sequence
                self._waiting.remove(one)
                self._under_way.append(one)
                self._advance(one)

    def _advance(self, one: Generation) -> None:
        """Take a reply to its next event, step or end."""
        self._compute_for((one,))
        try:
            self._backend.use_adapters(one.loop.adapters)
        except EngineError as error:
            self._throw(one, error)
        else:
            self._take(one)

    def _compute(self, ready: Sequence[Generation]) -> None:
        """Compute the steps of some replies in one batch, and take each to what comes behind."""
        chosen = self._chosen(ready)
        if not chosen:
            return
        self._compute_for(chosen)
        self._n_batches += 1
        lengths = [len(one.wish.sequence.tokens) for one in chosen if one.wish is not None]
        watch = Stopwatch()
        try:
            self._backend.use_adapters(chosen[0].loop.adapters)
            forwards = self._forwards(chosen)
        except EngineError as error:
            self._recover(chosen, lengths, error)
            return
        is_alone, n_shared, elapsed_s = len(chosen) == 1, _n_shared(chosen), watch.total()
        for one, forward in zip(chosen, forwards, strict=True):
            one.wish, one.turn = None, self._n_batches
            self._take(one, Computed(forward.logits, is_alone, n_shared, elapsed_s))
            n_shared = 0

    def _forwards(self, chosen: Sequence[Generation]) -> list[Forward]:
        steps = [one.wish for one in chosen if one.wish is not None]
        return [_alone(*steps)] if len(steps) == 1 else self._backend.verify_batch(steps)

    def _chosen(self, ready: Sequence[Generation]) -> tuple[Generation, ...]:
        """Whose steps go into the next batch: those that waited longest, as many as fit."""
        if len(ready) == 1 and not ready[0].cancellation.is_cancelled:
            return (ready[0],)
        chosen: list[Generation] = []
        n_rows = n_tokens = n_unread = 0
        n_most_unread = self.chunk if _decodes(ready) else self._backend.n_batch
        for one in sorted(ready, key=lambda one: one.turn):
            step = one.wish
            assert step is not None, "a ready reply has a step to compute"
            if one.cancellation.is_cancelled:
                self._throw(one, DecodeAborted("stopped between two decode steps"))
                continue
            if chosen and one.loop.adapters != chosen[0].loop.adapters:
                continue  # those in use work on a whole batch
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
        """Go on behind a batch that failed: the reply that it failed for is told, no other."""
        if len(chosen) == 1:
            self._throw(chosen[0], error)
            return
        for one, length in zip(chosen, lengths, strict=True):
            assert one.wish is not None
            sequence = one.wish.sequence
            if len(sequence.tokens) >= length and sequence.can_crop(length):
                sequence.crop(length)
            else:
                self._throw(one, error)
        for one in chosen:
            if one.wish is not None:
                self._compute((one,))

    def _throw(self, one: Generation, error: EngineError) -> None:
        one.wish = None
        self._take(one, error)

    def _take(self, one: Generation, given: Computed | EngineError | None = None) -> None:
        """Let a loop go on, with what it was given, to the next thing that it yields."""
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
                one.wish = item
            else:
                one.events.append(item)

    def _finish(self, one: Generation) -> None:
        one.is_over, one.wish = True, None
        one.cancellation.detach()
        for generations in (self._under_way, self._waiting):
            if one in generations:
                generations.remove(one)

    def _compute_for(self, generations: tuple[Generation, ...]) -> None:
        """What follows is these replies' work; an abort that was meant for others is over."""
        if self._computing == generations:
            return  # an abort that is under way is meant for them
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
        """Abort what is being computed where nobody wants it any more."""
        if all(one.cancellation.is_cancelled for one in self._computing):
            self._is_stopped = True
            self._stop()


def _alone(step: Step) -> Forward:
    """What a step gives with which no other reply's is computed."""
    if not step.tokens:
        step.sequence.prefill(step.unread)
        return NOTHING
    return step.sequence.verify(step.tokens, unread=step.unread)


def _decodes(ready: Sequence[Generation]) -> bool:
    """Whether somebody waits for a token while others' prompts are read."""
    return any(one.wish is not None and not one.wish.unread for one in ready)


def _n_shared(chosen: Sequence[Generation]) -> int:
    """The rows of a batch of several replies that has rows alone; 0 for any other."""
    steps = [one.wish for one in chosen if one.wish is not None]
    if len(steps) < 2 or any(step.unread for step in steps):
        return 0
    return sum(len(step.tokens) for step in steps)
