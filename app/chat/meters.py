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
    ServerFigures,
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
"""Lines of the cache's log that are shown."""


@dataclass(slots=True)
class _Bin:
    """Counts of one column of the histories."""

    start: float = 0.0
    n_verified: int = 0
    n_accepted: int = 0
    n_emitted: int = 0


class ReplyMeter:
    """The figures of one reply, while it is made and afterwards.

    Args:
        clock: Time in seconds.
        cache: The context as the panels show it until this reply reports it.
        before: The statistics of the first part of a continued reply.

    Attributes:
        cache: The context as it was reported last.
        tally: Counts of this part.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        cache: CacheChanged | None = None,
        before: GenerationStats | None = None,
    ) -> None:
        self.is_running = True
        self.cache = cache
        self.tally = GenerationStats()
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
        self._last: RoundFinished | None = None
        self._unsettled: list[RoundFinished] = []
        """Rounds that the tally does not hold yet: a hundred a second, for ten frames."""
        self._recent: deque[tuple[float, int]] = deque()
        """Times and numbers of tokens within the window."""
        self._acceptance: deque[float | None] = deque(maxlen=N_BINS)
        self._tps: deque[float | None] = deque(maxlen=N_BINS)
        self._verdicts: deque[bool] = deque(maxlen=N_VERDICTS)
        self._bin = _Bin()

    def phase(self, engine: Phase) -> Phase:
        """Phase of this reply, or of the engine once it has ended."""
        return self._phase if self.is_running else engine

    def snapshot(self, engine: CockpitSnapshot) -> CockpitSnapshot:
        """The engine's snapshot with the figures of this reply."""
        self.settled()
        self._close_bin()
        last = self._last
        return replace(
            engine,
            phase=self.phase(engine.phase),
            next_length=last.next_length if last else engine.next_length,
            reason=last.reason if last else engine.reason,
            plain_spread=last.plain_spread if last else engine.plain_spread,
            reply=self._whole(self.tally),
            acceptance_history=tuple(self._acceptance),
            tps_history=tuple(self._tps),
            verdicts=tuple(self._verdicts),
            decode_tps=self._live_tps() if self.is_running else self._decode_tps,
            first_token_s=self._first_token_s,
            prefill=self._prefill if self.is_running else None,
            prefill_left_s=self._prefill_left_s() if self.is_running else None,
            prefill_s=self._prefill_s,
            thinking=self._thinking,
            cache=self.cache,
        )

    def _whole(self, stats: GenerationStats) -> GenerationStats:
        return stats if self._before is None else self._before + stats

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
                self.cache = event
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
        self._decode_tps = self._whole(stats).decode_tps
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
        if self.is_running:
            self.settled()
            self._decode_tps = self._live_tps()
            self.tally = tally or self.tally
            self.is_running = False

    def settled(self) -> GenerationStats:
        """Counts of this part, up to the last round."""
        if self._unsettled:
            self.tally = self.tally.with_rounds(self._unsettled)
            self._last = self._unsettled[-1]
            self._unsettled.clear()
        return self.tally

    def _live_tps(self) -> float | None:
        now = self._clock()
        # A slow model has few groups in that time: two stay, however old they are.
        while len(self._recent) > 2 and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        if len(self._recent) < 2:
            return None
        # The first group came before its own time began to count.
        n_tokens = sum(n for _, n in self._recent) - self._recent[0][1]
        # A pause since the last group counts as well.
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
    """The state of the panels; `snapshot` is cheap enough for every frame."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._engine = CockpitSnapshot()
        self._earlier = GenerationStats()
        """Of finished replies since the model was loaded."""
        self._replies: dict[int, ReplyMeter] = {}
        """Running replies by id, oldest first."""
        self._last = ReplyMeter(clock)
        """The reply that ended last."""
        self._last.is_running = False
        self._notes: deque[CacheNote] = deque(maxlen=N_NOTES)

    def snapshot(self, reply_id: int | None = None) -> CockpitSnapshot:
        """What the panels show of a running reply, or of the last one."""
        running = self._replies.get(reply_id) if reply_id is not None else None
        snapshot = (running or self._newest).snapshot(self._engine)
        tallies = [meter.settled() for meter in self._replies.values()]
        return replace(snapshot, session=reduce(add, tallies, self._earlier))

    @property
    def cache(self) -> CacheChanged | None:
        """The context as the newest reply reported it."""
        return self._newest.cache

    @property
    def _newest(self) -> ReplyMeter:
        return next(reversed(self._replies.values()), self._last)

    @property
    def phase(self) -> Phase:
        """Phase of the newest reply, or of the engine."""
        return self._newest.phase(self._engine.phase)

    def start_load(self, configuration: Configuration) -> None:
        """Start the counts of a model that is being loaded."""
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

    def start_reply(self, reply_id: int = 0, before: GenerationStats | None = None) -> None:
        """Start the counts of a reply; `before` are those of its first part."""
        self._replies[reply_id] = ReplyMeter(self._clock, self._last.cache, before)

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

    def feed(self, event: Event, reply_id: int = 0) -> None:
        """Count one event of the engine or of a reply."""
        match event:
            case Loaded():
                self._loaded(event)
            case TiersChanged():
                self._notes.extend(event.report.notes)
                self._engine = replace(
                    self._engine, tiers=event.report, cache_log=tuple(self._notes)
                )
            case ThreadsChanged():
                self._engine = replace(self._engine, threads=event)
            case ServerFigures(figures):
                self._engine = replace(self._engine, server=figures)
            case Waiting(text):
                self._engine = replace(self._engine, waiting=text)
            case SpeculationChanged(predictor, controller, note):
                self._engine = replace(
                    self._engine, predictor=predictor, controller=controller, fault=note
                )
            case WorkerStopped(will_restart=will_restart):
                for running in tuple(self._replies):
                    self._feed_reply(event, running)
                self._last.feed(event)
                self._stopped(will_restart=will_restart)
            case Failed(fatal=fatal) if fatal or self._engine.phase is Phase.LOADING:
                self._engine = replace(self._engine, phase=Phase.STOPPED, waiting="")
            case _:
                self._feed_reply(event, reply_id)

    def _feed_reply(self, event: Event, reply_id: int) -> None:
        meter = self._replies.get(reply_id, self._last)
        meter.feed(event)
        if reply_id in self._replies and not meter.is_running:
            self._last = self._replies.pop(reply_id)
            self._earlier = self._earlier + meter.tally

    def _stopped(self, *, will_restart: bool) -> None:
        phase = Phase.LOADING if will_restart else Phase.STOPPED
        self._engine = replace(
            self._engine, phase=phase, waiting="", process_bytes=None, tiers=None, buffers=()
        )
        self._last.cache = None

    def _loaded(self, event: Loaded) -> None:
        self.set_speculation(event.configuration.speculation)
        self._last.cache = None
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


def _threads_of(event: Loaded) -> ThreadsChanged | None:
    if event.n_threads is None:
        return None
    is_chosen = event.configuration.n_threads is not None
    return ThreadsChanged(*event.n_threads, "chosen" if is_chosen else "")
