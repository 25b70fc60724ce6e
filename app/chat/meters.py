"""Counters that the engine's events feed and the screen samples: of the engine, and of replies."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

from app.chat.snapshot import (
    CockpitSnapshot,
    Phase,
    PlannedBytes,
    verification_label,
)
from app.format import share
from engine.cache.report import CacheNote
from engine.configuration import Configuration, SpeculationSettings
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    GenerationStats,
    Loaded,
    PromptProgress,
    PromptReady,
    RoundFinished,
    ServerTold,
    SpeculationChanged,
    Thinking,
    ThreadsChanged,
    TiersChanged,
    TokensCommitted,
    Waiting,
    WorkerStopped,
)
from engine.model.ollama import model_title

BIN_S = 0.5
"""Time that one column of a history stands for, in seconds."""
WINDOW_S = 2.0
"""Time over which the live speed is averaged, in seconds."""
MIN_TIMED_S = 2.0
"""Time of reading a prompt from which the rest is estimated, in seconds."""
N_BINS = 64
N_VERDICTS = 200
N_NOTES = 200
"""Lines of the cache's log that are kept."""


@dataclass(slots=True)
class _Bin:
    """What came within one column of the histories."""

    start: float = 0.0
    n_verified: int = 0
    n_accepted: int = 0
    n_emitted: int = 0


class ReplyMeter:
    """The figures of one reply, while it is made and behind that."""

    def __init__(
        self,
        clock: Callable[[], float],
        cache: CacheChanged | None = None,
        before: GenerationStats | None = None,
    ) -> None:
        """Of a reply that was asked for now.

        Args:
            clock: Time in seconds.
            cache: What the panels show of the context until this reply says more.
            before: The statistics of its first part, where it goes on behind one.
        """
        self.is_running = True
        self.tally = GenerationStats()
        """Of this part."""
        self._before = before
        self._clock = clock
        self._asked_at = clock()
        self._phase = Phase.PREFILL
        self._first_token_s: float | None = None
        self._has_begun = False
        self._prefill: PromptProgress | None = None
        self._read: list[tuple[float, int]] = []
        """Times and tokens of the prompt's first and last progress."""
        self._prefill_s: float | None = None
        self._decode_tps: float | None = None
        self._thinking: Thinking | None = None
        self._cache = cache
        self._last: RoundFinished | None = None
        self._unsettled: list[RoundFinished] = []
        """Rounds that the counters do not hold yet: a hundred a second, for ten frames."""
        self._recent: deque[tuple[float, int]] = deque()
        """When tokens came in, and how many, within the window."""
        self._acceptance: deque[float | None] = deque(maxlen=N_BINS)
        self._tps: deque[float | None] = deque(maxlen=N_BINS)
        self._verdicts: deque[bool] = deque(maxlen=N_VERDICTS)
        self._bin = _Bin()

    @property
    def cache(self) -> CacheChanged | None:
        """The context as it was told last."""
        return self._cache

    def phase_beside(self, engine: Phase) -> Phase:
        """What the engine is doing for this reply; what it does by itself once that is over."""
        return self._phase if self.is_running else engine

    def forget_cache(self) -> None:
        """Take what was told of the context for that of an engine that is gone."""
        self._cache = None

    def shown_in(self, engine: CockpitSnapshot) -> CockpitSnapshot:
        """What the panels show of this reply, beside what they show of the engine."""
        self.settled()
        self._close_bin()
        shown = (
            engine
            if self._last is None
            else replace(
                engine,
                next_length=self._last.next_length,
                reason=self._last.reason,
                plain_spread=self._last.plain_spread,
            )
        )
        return replace(
            shown,
            phase=self.phase_beside(engine.phase),
            reply=self.tally if self._before is None else self._before + self.tally,
            acceptance_history=tuple(self._acceptance),
            tps_history=tuple(self._tps),
            verdicts=tuple(self._verdicts),
            decode_tps=self._live_tps() if self.is_running else self._decode_tps,
            first_token_s=self._first_token_s,
            prefill=self._prefill if self.is_running else None,
            prefill_left_s=self._prefill_left_s() if self.is_running else None,
            prefill_s=self._prefill_s,
            thinking=self._thinking,
            cache=self._cache,
        )

    def feed(self, event: Event) -> None:
        """Count one event of the reply."""
        match event:
            case PromptProgress():
                self._phase, self._prefill = Phase.PREFILL, event
                self._read = [*self._read[:1], (self._clock(), event.n_done)]
            case PromptReady(elapsed_s=elapsed_s):
                self._phase, self._prefill, self._prefill_s = Phase.DECODING, None, elapsed_s
            case Thinking():
                self._thinking = event
            case TokensCommitted():
                self._committed(event)
            case RoundFinished():
                self._finished_round(event)
            case CacheChanged():  # ends a round
                self._cache = event
                self._close_bin()
            case Finished(stats=stats):
                self._finished(stats)
            case Failed() | WorkerStopped():
                self._end()
            case _:
                pass

    def _finished_round(self, event: RoundFinished) -> None:
        self._bin.n_verified += event.n_verified
        self._bin.n_accepted += event.n_accepted
        self._verdicts.extend(event.verdicts)
        if event.first_token_s is not None:
            self._first_token_s = event.first_token_s
        self._unsettled.append(event)

    def _finished(self, stats: GenerationStats) -> None:
        self._end(stats)
        whole = stats if self._before is None else self._before + stats
        self._decode_tps = whole.decode_tps
        self._first_token_s, self._prefill_s = stats.first_token_s, stats.prefill_s or None

    def _committed(self, event: TokensCommitted) -> None:
        now = self._clock()
        if not self._has_begun:
            self._has_begun = True
            self._bin.start = now
            if self._first_token_s is None:
                self._first_token_s = now - self._asked_at
        n_tokens = len(event.tokens) + event.n_unnamed
        self._recent.append((now, n_tokens))
        self._bin.n_emitted += n_tokens

    def _end(self, tally: GenerationStats | None = None) -> None:
        """Close it; a reply that was cut counts as far as it came."""
        if self.is_running:
            self.settled()
            self._decode_tps = self._live_tps()
            self.tally = tally or self.tally
            self.is_running = False

    def settled(self) -> GenerationStats:
        """What this part counted, up to the last round."""
        if self._unsettled:
            self.tally = self.tally.with_rounds(self._unsettled)
            self._last = self._unsettled[-1]
            self._unsettled.clear()
        return self.tally

    def _live_tps(self) -> float | None:
        now = self._clock()
        # A slow model has few groups in that time: two are kept, whenever they came.
        while len(self._recent) > 2 and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        if len(self._recent) < 2:
            return None
        # The first group came before its own time began to count.
        n_tokens = sum(n for _, n in self._recent) - self._recent[0][1]
        # Where none came for long, that counts as well.
        end = max(self._recent[-1][0], now - WINDOW_S)
        return share(n_tokens, end - self._recent[0][0])

    def _prefill_left_s(self) -> float | None:
        if self._prefill is None or len(self._read) < 2:
            return None
        (began, n_before), (last, n_done) = self._read
        if n_done <= n_before or last - began < MIN_TIMED_S:
            return None
        total_s = (self._prefill.n_total - n_done) * (last - began) / (n_done - n_before)
        return max(total_s - (self._clock() - last), 0.0)

    def _close_bin(self) -> None:
        now, done = self._clock(), self._bin
        if not self.is_running or not self._has_begun or now - done.start < BIN_S:
            return
        self._acceptance.append(share(done.n_accepted, done.n_verified))
        self._tps.append(share(done.n_emitted, now - done.start))
        self._bin = _Bin(now)


class Meters:
    """The state of the cockpit; `snapshot` is cheap enough for every frame.

    Replies are known by the numbers that the caller gives them; 0 is nobody's in particular.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine = CockpitSnapshot()
        self._earlier = GenerationStats()
        """Finished replies since the model was loaded."""
        self._replies: dict[int, ReplyMeter] = {}
        """Those under way, in the order in which they were asked for."""
        self._last = ReplyMeter(clock)
        """The reply that was asked for last, or that ended last where none is under way."""
        self._last.is_running = False
        self._notes: deque[CacheNote] = deque(maxlen=N_NOTES)

    def snapshot(self, number: int | None = None) -> CockpitSnapshot:
        """What the panels show now.

        Args:
            number: The reply that they show; the last one where it is not under way.
        """
        running = self._replies.get(number) if number is not None else None
        snapshot = (running or self._newest).shown_in(self._engine)
        tallies = [meter.settled() for meter in self._replies.values()]
        return replace(snapshot, session=reduce(add, tallies, self._earlier))

    @property
    def cache(self) -> CacheChanged | None:
        """The context as it was told last, by the reply that was asked for last."""
        return self._newest.cache

    @property
    def _newest(self) -> ReplyMeter:
        return next(reversed(self._replies.values()), self._last)

    @property
    def phase(self) -> Phase:
        """What the engine is doing, for the reply that was asked for last."""
        return self._newest.phase_beside(self._engine.phase)

    def start_load(self, configuration: Configuration) -> None:
        """Count for a model that is being loaded."""
        self._earlier = GenerationStats()
        self._replies.clear()
        self._last = ReplyMeter(self._clock)
        self._last.is_running = False
        self._engine = CockpitSnapshot(
            phase=Phase.LOADING,
            model_name=model_title(configuration.address),
            n_ctx=configuration.n_ctx,
            n_slots=configuration.n_slots,
            cache_log=tuple(self._notes),
        )
        self.set_speculation(configuration.speculation)

    def start_reply(self, number: int = 0, before: GenerationStats | None = None) -> None:
        """Count for a reply that was asked for, which may go on behind one with statistics."""
        self._replies[number] = ReplyMeter(self._clock, self._last.cache, before)

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Show other settings of speculation."""
        self._engine = replace(
            self._engine,
            predictor=settings.predictor,
            controller=settings.controller,
            n_draft=settings.n_draft,
            verification_label=verification_label(settings),
        )

    def set_planned(self, planned: PlannedBytes | None) -> None:
        """Show the estimate for the loaded configuration."""
        self._engine = replace(self._engine, planned=planned)

    def set_process_bytes(self, nbytes: int | None) -> None:
        """Show the memory of the engine's process."""
        self._engine = replace(self._engine, process_bytes=nbytes)

    def feed(self, event: Event, number: int = 0) -> None:
        """Count one event.

        Args:
            event: What the engine told.
            number: The reply that it is of, if it is of one.
        """
        match event:
            case Loaded():
                self._loaded(event)
            case TiersChanged():
                self._notes.extend(event.report.notes)
                self._engine = replace(
                    self._engine, tiers=event.report, cache_log=tuple(self._notes)
                )
            case ThreadsChanged() | ServerTold() | Waiting():
                self._engine = _with(self._engine, event)
            case SpeculationChanged(predictor, controller, note):
                self._engine = replace(
                    self._engine, predictor=predictor, controller=controller, fault=note
                )
            case WorkerStopped(will_restart=will_restart):
                for one in tuple(self._replies):
                    self._feed_reply(event, one)
                self._last.feed(event)
                self._stopped(will_restart=will_restart)
            case Failed(fatal=fatal) if fatal or self._engine.phase is Phase.LOADING:
                self._engine = replace(self._engine, phase=Phase.STOPPED, waiting="")
            case _:
                self._feed_reply(event, number)

    def _feed_reply(self, event: Event, number: int) -> None:
        meter = self._replies.get(number, self._last)
        meter.feed(event)
        if number in self._replies and not meter.is_running:
            self._last = self._replies.pop(number)
            self._earlier = self._earlier + meter.tally

    def _stopped(self, *, will_restart: bool) -> None:
        phase = Phase.LOADING if will_restart else Phase.STOPPED
        self._engine = replace(
            self._engine, phase=phase, waiting="", process_bytes=None, tiers=None, buffers=()
        )
        self._last.forget_cache()

    def _loaded(self, event: Loaded) -> None:
        self.set_speculation(event.configuration.speculation)
        self._last.forget_cache()
        self._engine = replace(
            self._engine,
            phase=Phase.READY,
            model_name=model_title(event.configuration.address),
            file_type=event.file_type,
            n_ctx=event.n_ctx,
            n_ctx_train=event.n_ctx_train,
            n_slots=event.configuration.n_slots,
            threads=_threads_of(event),
            buffers=event.buffers,
            tiers=None,
        )


def _with(
    snapshot: CockpitSnapshot, event: ThreadsChanged | ServerTold | Waiting
) -> CockpitSnapshot:
    match event:
        case ThreadsChanged():
            return replace(snapshot, threads=event)
        case ServerTold(figures):
            return replace(snapshot, server=figures)
        case Waiting(text):
            return replace(snapshot, waiting=text)


def _threads_of(event: Loaded) -> ThreadsChanged | None:
    if event.n_threads is None:
        return None
    is_chosen = event.configuration.n_threads is not None
    return ThreadsChanged(*event.n_threads, "chosen" if is_chosen else "")
