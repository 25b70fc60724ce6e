"""An engine client that plays a script: replies at a rate, and the faults of a worker."""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.configuration import Configuration, SpeculationSettings
from engine.events import (
    BufferSize,
    CacheChanged,
    CommittedToken,
    Event,
    Failed,
    Finished,
    FinishReason,
    GenerationStats,
    Loaded,
    OfReply,
    PromptProgress,
    PromptReady,
    RoundFinished,
    SourceCounts,
    SpeculationChanged,
    TokenKind,
    TokensCommitted,
    TokensCounted,
    WorkerStopped,
)
from engine.memory.units import MIB
from engine.process.protocol import CacheAction
from engine.requests import GenerationRequest, Message

CONFIGURATION = Configuration(model_path=Path("Tiny-Instruct.Q4_1.gguf"), n_ctx=8192)
PIECE = re.compile(r"\s?\S{1,6}|\s")
VOCABULARY: list[str] = []
"""Every piece of all replies; a token's id is 100 and its place."""
FIRST_ID = 100
PLAIN_STEP_S = 0.014


@dataclass(frozen=True, slots=True)
class Script:
    """How the engine behaves.

    Attributes:
        tps: Tokens per second; None gives the whole reply at the first poll.
        prefill_s: How long the prompt takes.
        dies_after: Tokens after which the process is gone.
        fails_to_load: Title and message of a load that fails.
        refuses: Title and message of a failure before the first token.
        fails_after: Tokens after which the request fails while the engine goes on.
        fills_after: Tokens after which the context is full.
    """

    replies: tuple[str, ...] = ("Hello there.",)
    tps: float | None = None
    prefill_s: float = 0.0
    dies_after: int | None = None
    fails_to_load: tuple[str, str] | None = None
    refuses: tuple[str, str] | None = None
    fails_after: int | None = None
    fills_after: int | None = None


FULL = Script(refuses=("The context is full", "the prompt has 900 tokens, the context has 512"))


@dataclass(slots=True)
class _Running:
    """One reply that is played."""

    number: int
    play: Iterator[Sequence[Event] | float]
    due: float
    is_stopping: bool = False


class ScriptedClient:
    """Implements `EngineClient` without a process."""

    def __init__(
        self, script: Script | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.script = script or Script()
        self.requests: list[GenerationRequest] = []
        self.loads: list[Configuration] = []
        self.speculation = SpeculationSettings()
        self.settings: list[SpeculationSettings] = []
        """Every change of the settings, in order."""
        self.prefetched: list[tuple[Message, ...]] = []
        self.managed: list[tuple[CacheAction, str]] = []
        self.forgotten: list[str] = []
        self.counted: list[str] = []
        self.n_stops = 0
        self.is_closed = False
        self.is_deaf = False
        """Whether stopping takes longer than the test."""
        self._clock = clock
        self._events: list[Event] = []
        self._running: list[_Running] = []
        self._is_alive = False
        self._n_replies = 0

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    @property
    def is_alive(self) -> bool:
        return self._is_alive

    def play(self, script: Script) -> None:
        """Behave so from now on; the next reply is the script's first."""
        self.script, self._n_replies = script, 0

    def load(self, configuration: Configuration) -> None:
        self.loads.append(configuration)
        self._running.clear()
        if self.script.fails_to_load is not None:
            self._events.append(Failed(*self.script.fails_to_load, fatal=True))
            return
        self._is_alive = True
        self._events.append(loaded(configuration))

    def generate(self, request: GenerationRequest, reply_id: int = 0) -> None:
        self.requests.append(request)
        if self.script.refuses is not None:
            self._events.append(_of(reply_id, Failed(*self.script.refuses)))
            return
        text = self.script.replies[self._n_replies % len(self.script.replies)]
        if request.reads_only:
            text = ""
        else:
            self._n_replies += 1
        running = _Running(reply_id, iter(()), self._clock())
        running.play = self._play(text, request, running)
        self._running.append(running)

    def prefetch(self, messages: Sequence[Message]) -> None:
        self.prefetched.append(tuple(messages))

    def manage_cache(self, action: CacheAction, key: str = "") -> None:
        self.managed.append((action, key))

    def forget_owner(self, owner: str) -> None:
        self.forgotten.append(owner)

    def count_tokens(self, key: int, text: str) -> None:
        self.counted.append(text)
        self._events.append(TokensCounted(key, len(text.split())))

    def stop(self, reply_id: int = 0) -> None:
        self.n_stops += 1
        for running in self._running:
            if running.number == reply_id and not self.is_deaf:
                running.is_stopping, running.due = True, self._clock()

    def set_speculation(self, settings: SpeculationSettings) -> None:
        self.speculation = settings
        self.settings.append(settings)
        self._events.append(SpeculationChanged(settings.predictor, settings.controller))

    def hurry(self) -> None:
        """Send the rest of this reply and the next ones at once."""
        self._clock = lambda: math.inf

    def emit(self, event: Event) -> None:
        """Send an event out of turn, of the reply that was asked for last if one runs."""
        is_own = isinstance(event, Loaded | WorkerStopped) or not self._running
        self._events.append(event if is_own else _of(self._running[-1].number, event))

    def poll(self, timeout_s: float = 0.0) -> list[Event]:
        for running in tuple(self._running):
            while running in self._running and self._clock() >= running.due:
                self._go_on(running)
        events, self._events = self._events, []
        return events

    def _go_on(self, running: _Running) -> None:
        step = next(running.play, None)
        if step is None:
            self._running.remove(running)
        elif isinstance(step, float):
            running.due += step
        else:
            self._events += [_of(running.number, event) for event in step]

    def process_memory_bytes(self) -> int | None:
        return 312 * MIB if self._is_alive else None

    @property
    def has_ended(self) -> bool:
        return self.is_closed

    def begin_close(self) -> None:
        self.close()

    def close(self) -> None:
        self.is_closed = True
        self._running.clear()

    def _play(
        self, text: str, request: GenerationRequest, running: _Running
    ) -> Iterator[Sequence[Event] | float]:
        """Groups of events, and seconds to wait before the next group."""
        n_prompt = 200
        for part in range(1, 5):
            yield [PromptProgress(n_prompt * part // 4, n_prompt, 0)]
            yield self.script.prefill_s / 4
            if running.is_stopping:
                break
        yield [PromptReady(n_prompt, n_hot=120, elapsed_s=self.script.prefill_s)]
        pieces = PIECE.findall(text)
        ids = list(request.continues)
        if text_of_ids(ids) != request.continues_text:
            ids = [token_of(piece) for piece in PIECE.findall(request.continues_text)]
        n_tokens = n_rounds = n_accepted = 0
        for i, group in enumerate(_groups(pieces)):
            if running.is_stopping:
                break
            yield _round_events(group, i, n_prompt + n_tokens)
            ids += map(token_of, group)
            n_tokens += len(group)
            n_rounds += 1
            n_accepted += len(group) - 1
            if self.script.dies_after is not None and n_tokens >= self.script.dies_after:
                self._is_alive = False
                yield [WorkerStopped("The engine stopped", "It was killed by signal 9.", -9)]
                return
            if self.script.fails_after is not None and n_tokens >= self.script.fails_after:
                yield [Failed("Decoding failed", "llama_decode returned -3.")]
                return
            if self.script.tps is not None:
                yield len(group) / self.script.tps
            if self.script.fills_after is not None and n_tokens >= self.script.fills_after:
                yield [_finished(ids, FinishReason.CONTEXT, n_tokens, n_rounds, n_accepted)]
                return
        reason = FinishReason.CANCELLED if running.is_stopping else FinishReason.END
        yield [_finished(ids, reason, n_tokens, n_rounds, n_accepted)]


def token_of(piece: str) -> int:
    if piece not in VOCABULARY:
        VOCABULARY.append(piece)
    return FIRST_ID + VOCABULARY.index(piece)


def text_of_ids(token_ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[token - FIRST_ID] for token in token_ids)


def loaded(configuration: Configuration) -> Loaded:
    return Loaded(
        model_name="Tiny-Instruct",
        file_type="Q4_1",
        n_vocab=49152,
        n_ctx=configuration.n_ctx,
        n_ctx_train=8192,
        can_crop=True,
        has_chat_template=True,
        vocabulary_id="tiny",
        configuration=configuration,
        predictors=("off", "lookup"),
        buffers=(
            BufferSize("CPU", "model", 92 * MIB),
            BufferSize("CPU", "KV", 180 * MIB),
            BufferSize("CPU", "compute", 17 * MIB),
        ),
        elapsed_s=0.2,
    )


def _groups(pieces: Sequence[str]) -> Iterator[Sequence[str]]:
    sizes = (1, 3, 2, 4, 1)
    start = i = 0
    while start < len(pieces):
        size = sizes[i % len(sizes)]
        yield pieces[start : start + size]
        start, i = start + size, i + 1


def _round_events(group: Sequence[str], i: int, n_used: int) -> list[Event]:
    n_accepted = len(group) - 1
    n_drafted = 3 if i % 5 else 0
    n_verified = max(n_drafted, n_accepted)
    kinds = [TokenKind.DRAFT] * n_accepted + [
        TokenKind.CORRECTION if n_drafted else TokenKind.PLAIN
    ]
    source = "lookup" if n_drafted else None
    tokens = tuple(
        CommittedToken(token_of(piece), kind, source)
        for piece, kind in zip(group, kinds, strict=True)
    )
    return [
        TokensCommitted(tokens, "".join(group), tuple(map(len, group))),
        RoundFinished(
            n_drafted=n_verified,
            n_verified=n_verified,
            n_examined=min(n_accepted + 1, n_verified),
            n_accepted=n_accepted,
            n_emitted=len(group),
            source=source,
            length=n_drafted,
            next_length=3 + i % 3,
            reason="up: 5 of 5 accepted",
            draft_s=0.0001,
            verify_s=0.018,
            elapsed_s=0.018,
            plain_step_s=PLAIN_STEP_S,
            verdicts=(True,) * n_accepted + (False,) * (n_verified - n_accepted),
        ),
        CacheChanged(n_used + len(group), 8192, 180 * MIB),
    ]


def _finished(
    ids: Sequence[int], reason: FinishReason, n_tokens: int, n_rounds: int, n_accepted: int
) -> Finished:
    n_verified = max(3 * n_rounds, n_accepted)
    stats = GenerationStats(
        n_prompt=200,
        n_reused=120,
        n_rounds=n_rounds,
        n_drafted=n_verified,
        n_verified=n_verified,
        n_examined=n_verified,
        n_accepted=n_accepted,
        n_emitted=n_tokens,
        by_source={
            "lookup": SourceCounts(n_verified, n_verified, n_verified, n_accepted, n_rounds)
        },
        prefill_s=0.1,
        first_token_s=0.31,
        decode_s=n_rounds * 0.018,
        decode_tps=74.2,
        plain_step_s=PLAIN_STEP_S,
        saved_s=n_tokens * PLAIN_STEP_S - n_rounds * 0.018,
        saved_error_s=0.01,
        predictor="lookup",
        controller="fixed",
    )
    return Finished(reason, text_of_ids(ids), tuple(ids), "tiny", 42, stats, 200 + n_tokens, 8192)


def _of(reply_id: int, event: Event) -> Event:
    is_own = reply_id == 0 or isinstance(event, WorkerStopped)
    return event if is_own else OfReply(reply_id, event)
