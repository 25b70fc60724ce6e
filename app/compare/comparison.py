"""Answers one prompt alternately with two ways of drafting, and keeps the pairs.

The replies come one after the other, because their times are compared; which side begins changes
from pair to pair, since a machine that becomes warm is slower for the second.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from app.chat.spans import TokenSpan, spans_of
from app.chat.update import SIDES
from app.compare.side import Side
from engine.configuration import SpeculationSettings
from engine.events import (
    ENGINE_EVENTS,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationStats,
    OfReply,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.process.protocol import EngineClient
from engine.requests import GenerationRequest


class Answer:
    """Collects the text, the counts and the clock of one reply."""

    def __init__(self, side: Side, clock: Callable[[], float]) -> None:
        self.side = side
        self.spans: list[TokenSpan] = []
        self.tally = GenerationStats()
        self.note: str | None = None
        """Why it drafts in another way than its side says, or not at all."""
        self.finished: Finished | None = None
        self.margins: list[float | None] = []
        """By how many logits each token was ahead of the next best."""
        self._clock = clock
        self._began: float | None = None
        self._ended: float | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        if self.finished is not None:
            return self.finished.text
        return "".join(span.text for span in self.spans)

    @property
    def elapsed_s(self) -> float | None:
        """Seconds since the prompt was read; of a finished reply, those that its rounds took."""
        if self.finished is not None:
            return self.finished.stats.decode_s
        if self._began is None:
            return None
        return (self._ended or self._clock()) - self._began

    @property
    def decode_tps(self) -> float | None:
        """Tokens a second without the prompt."""
        if self.finished is not None:
            return self.finished.stats.decode_tps
        elapsed_s = self.elapsed_s
        if not elapsed_s or not self.tally.n_emitted:
            return None
        return self.tally.n_emitted / elapsed_s

    def take(self, event: Event) -> None:
        """Count one event of this reply."""
        match event:
            case PromptReady():
                self._began = self._clock()
            case TokensCommitted():
                self.spans += spans_of(event)
                self.margins += [token.margin for token in event.tokens]
            case RoundFinished():
                self.tally = self.tally.with_rounds((event,))
            case SpeculationChanged(note=note):
                self.note = note
            case Finished():
                self.finished = event
                self.tally = event.stats
            case _:
                pass

    def cut(self) -> None:
        """Stop the clock of a reply that did not come to its end."""
        self._ended = self._ended or self._clock()


@dataclass(frozen=True, slots=True)
class Pair:
    """Two whole replies to one prompt."""

    first: Answer
    second: Answer


class Comparison:
    """A running comparison; whoever polls the client hands the events on to `take`.

    Args:
        client: The engine, which must be idle.
        request: The prompt; its seed is used for every reply.
        sides: How the first and the second reply are made.
        restore: Settings that the engine has again when nothing runs.
        clock: Time in seconds.
    """

    def __init__(
        self,
        client: EngineClient,
        request: GenerationRequest,
        sides: tuple[Side, Side],
        *,
        restore: SpeculationSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request = request
        self.sides = sides
        self.pairs: list[Pair] = []
        self.shown: list[Answer | None] = [None, None]
        """The newest answer of each side."""
        self.problem: str | None = None
        """Why it ended before its time."""
        self._client = client
        self._restore = restore
        self._clock = clock
        self._running: int | None = None
        """The side that answers now."""
        self._n_wanted = 0
        self._is_stopping = False

    @property
    def is_running(self) -> bool:
        """A reply is being made."""
        return self._running is not None

    @property
    def running_side(self) -> int | None:
        """The side that answers now, 0 or 1."""
        return self._running

    @property
    def was_stopped(self) -> bool:
        """The user ended it."""
        return self._is_stopping

    @property
    def n_wanted(self) -> int:
        """Pairs there will be when all is done."""
        return self._n_wanted

    def add_pairs(self, n_pairs: int = 1) -> None:
        """Make that many pairs more, beginning now if nothing runs."""
        self._n_wanted += n_pairs
        if not self.is_running:
            self.problem = None
            self._is_stopping = False
            self._begin_pair()

    def stop(self) -> None:
        """End the running reply; pairs that are whole stay."""
        if self.is_running and not self._is_stopping:
            self._is_stopping = True
            self._stop_running()

    def revoke(self, why: str) -> None:
        """End without the running reply, because the engine is taken away."""
        if self.is_running:
            self._stop_running()
            self._end(why)

    def take(self, event: Event) -> bool:
        """Handle an event of its replies; False for one that the conversation should have."""
        match event:
            case WorkerStopped(title, message):
                if self.is_running:
                    self._end(f"{title}: {message}")
                return False
            case OfReply(reply_id, told) if reply_id in SIDES:
                index = SIDES.index(reply_id)
                return index == self._running and self._take_own(index, told)
            case _:
                return False

    def _take_own(self, index: int, event: Event) -> bool:
        answer = self.shown[index]
        assert answer is not None
        answer.take(event)
        match event:
            case Failed(title, message):
                self._end(f"{title}: {message}")
            case Finished(reason=reason):
                self._is_stopping |= reason is FinishReason.CANCELLED
                answer.cut()
                self._running = None
                self._next()
            case _:
                return not isinstance(event, ENGINE_EVENTS)
        return True

    def _stop_running(self) -> None:
        if self._running is not None:
            self._client.stop(SIDES[self._running])

    def _begin_pair(self) -> None:
        self.shown = [None, None]
        self._begin(len(self.pairs) % 2)

    def _begin(self, index: int) -> None:
        self._client.set_speculation(self.sides[index].settings)
        self._running = index
        self.shown[index] = Answer(self.sides[index], self._clock)
        self._client.generate(self.request, SIDES[index])

    def _next(self) -> None:
        first, second = self.shown
        if self._is_stopping:
            self._end("stopped")
        elif first is None or second is None:
            self._begin(1 if second is None else 0)
        else:
            self.pairs.append(Pair(first, second))
            if len(self.pairs) < self._n_wanted:
                self._begin_pair()
            else:
                self._end(None)

    def _end(self, problem: str | None) -> None:
        answer = None if self._running is None else self.shown[self._running]
        if answer is not None:
            answer.cut()
        self._running = None
        self._n_wanted = len(self.pairs)
        self.problem = problem
        self._client.set_speculation(self._restore)
