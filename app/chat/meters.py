"""Counters of the engine and of replies, fed by events and sampled by the screen."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

from app.chat.snapshot import CockpitSnapshot, Phase, verification_label
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
"""Seconds that one column of a history covers."""
WINDOW_S = 2.0
"""Time over which the live speed is averaged, in seconds."""
MIN_TIMED_S = 2.0
"""Time of reading a prompt from which the rest is estimated, in seconds."""
N_BINS = 64
N_VERDICTS = 200
N_NOTES = 200
"""Lines of the cache's log that are shown."""
LAST_ROUND = ("next_length", "reason", "plain_spread")
"""Fields of the snapshot that the last round sets."""


@dataclass(slots=True)
class _Bin:
    """Counts of one column of the histories."""

    start: float = 0.0
    n_verified: int = 0
    n_accepted: int = 0
    n_emitted: int = 0


class ReplyMeter:
    """The figures of one reply, while it is written and afterwards.

    `tally` has the counts of this part; a continued reply has those of its first part `before`.
    The panels show `cache` until the reply reports its own.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        cache: CacheChanged | None = None,
        before: GenerationStats | None = None,
        *,
        is_running: bool = True,
    ) -> None:
        self.is_running = is_running
        self.tally = GenerationStats()
        self.figures: dict[str, Any] = {"phase": Phase.PREFILL, "cache": cache}
        """Fields of the snapshot that the reply sets."""
        self._before = before
        self._clock = clock
        self._started_at = clock()
        self._read: list[tuple[float, int]] = []
        """Times and tokens of the first and last progress of the prefill."""
        self._n_emitted = 0
        self._unsettled: list[RoundFinished] = []
        """Rounds that the tally does not have yet: a hundred a second, for ten frames."""
        self._recent: deque[tuple[float, int]] = deque()
        """Times and numbers of tokens within the window."""
        self._acceptance: deque[float | None] = deque(maxlen=N_BINS)
        self._tps: deque[float | None] = deque(maxlen=N_BINS)
        self._verdicts: deque[bool] = deque(maxlen=N_VERDICTS)
        self._bin: _Bin | None = None
        """Counts since the last column; None before the first token."""

    def phase(self, engine: Phase) -> Phase:
        """Phase of this reply, or of the engine once it has ended."""
        phase: Phase = self.figures["phase"]
        return phase if self.is_running else engine

    def snapshot(self, engine: CockpitSnapshot) -> CockpitSnapshot:
        self.settled()
        self._close_bin()
        now: dict[str, Any] = {"phase": self.phase(engine.phase)}
        if self.is_running:
            now |= {"decode_tps": self._live_tps(), "prefill_left_s": self._prefill_left_s()}
        return replace(
            engine,
            reply=self._whole(self.tally),
            acceptance_history=tuple(self._acceptance),
            tps_history=tuple(self._tps),
            verdicts=tuple(self._verdicts),
            **self.figures | now,
        )

    def _whole(self, stats: GenerationStats) -> GenerationStats:
        return stats if self._before is None else self._before + stats

    def feed(self, event: Event) -> None:
        figures = self.figures
        match event:
            case PromptProgress():
                figures |= {"phase": Phase.PREFILL, "prefill": event}
                self._read = [*self._read[:1], (self._clock(), event.n_done)]
            case PromptReady(n_prompt, elapsed_s=elapsed_s):
                figures |= {"phase": Phase.DECODING, "prefill": None, "prefill_s": elapsed_s}
                self.tally = GenerationStats(n_prompt, event.n_reused, prefill_s=elapsed_s)
            case Thinking():
                figures["thinking"] = event
            case TokensCommitted():
                self._commit(event)
            case RoundFinished():
                self._add_round(event)
            case CacheChanged():  # ends a round
                figures["cache"] = event
                self._close_bin()
            case Finished(stats=stats):
                self._end()
                self.tally = stats
                figures |= {
                    "decode_tps": self._whole(stats).decode_tps,
                    "first_token_s": stats.first_token_s,
                    "prefill_s": stats.prefill_s or None,
                }
            case Failed() | WorkerStopped():
                self._end()
            case _:
                pass

    def _add_round(self, event: RoundFinished) -> None:
        self._unsettled.append(event)
        self._verdicts.extend(event.verdicts)
        if self._bin is not None:
            self._bin.n_verified += event.n_verified
            self._bin.n_accepted += event.n_accepted
        if event.first_token_s is not None:
            self.figures["first_token_s"] = event.first_token_s

    def _commit(self, event: TokensCommitted) -> None:
        now = self._clock()
        if self._bin is None:
            self._bin = _Bin(now)
            self.figures.setdefault("first_token_s", now - self._started_at)
        n_tokens = len(event.tokens) + event.n_unnamed
        self._recent.append((now, n_tokens))
        self._n_emitted += n_tokens
        self._bin.n_emitted += n_tokens

    def _end(self) -> None:
        if self.is_running:
            self.settled()
            self.figures |= {"decode_tps": self._live_tps(), "prefill": None}
            self.is_running = False

    def settled(self) -> GenerationStats:
        """Counts of this part, up to the last round."""
        if self._unsettled:
            last = self._unsettled[-1]
            self.tally = self.tally.with_rounds(self._unsettled)
            self.figures |= {name: getattr(last, name) for name in LAST_ROUND}
            self._unsettled.clear()
        return self.tally

    def counted(self) -> GenerationStats:
        """Counts of a reply that ends without statistics of the engine."""
        return replace(self.settled(), n_emitted=self._n_emitted)

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
        prefill: PromptProgress | None = self.figures.get("prefill")
        if prefill is None or len(self._read) < 2:
            return None
        (began, n_before), (last, n_done) = self._read
        if n_done <= n_before or last - began < MIN_TIMED_S:
            return None
        total_s = (prefill.n_total - n_done) * (last - began) / (n_done - n_before)
        return max(total_s - (self._clock() - last), 0.0)

    def _close_bin(self) -> None:
        now, done = self._clock(), self._bin
        if not self.is_running or done is None or now - done.start < BIN_S:
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
        """Sums of the replies that finished since the model was loaded."""
        self._replies: dict[int, ReplyMeter] = {}
        """Running replies by id, oldest first."""
        self._last = ReplyMeter(clock, is_running=False)
        """The reply that ended last."""
        self._notes: deque[CacheNote] = deque(maxlen=N_NOTES)

    def snapshot(self, reply_id: int | None = None) -> CockpitSnapshot:
        running = self._replies.get(reply_id) if reply_id is not None else None
        snapshot = (running or self._newest).snapshot(self._engine)
        tallies = [meter.settled() for meter in self._replies.values()]
        return replace(snapshot, session=reduce(add, tallies, self._earlier))

    @property
    def cache(self) -> CacheChanged | None:
        cache: CacheChanged | None = self._newest.figures["cache"]
        return cache

    @property
    def _newest(self) -> ReplyMeter:
        return next(reversed(self._replies.values()), self._last)

    @property
    def phase(self) -> Phase:
        return self._newest.phase(self._engine.phase)

    def start_load(self, configuration: Configuration) -> None:
        self._earlier = GenerationStats()
        self._replies.clear()
        self._last = ReplyMeter(self._clock, is_running=False)
        self._engine = CockpitSnapshot(
            phase=Phase.LOADING,
            model_name=model_title(configuration.address),
            n_ctx=configuration.n_ctx,
            n_slots=configuration.n_slots,
            cache_log=tuple(self._notes),
        )
        self.set_speculation(configuration.speculation)

    def start_reply(self, reply_id: int = 0, before: GenerationStats | None = None) -> ReplyMeter:
        """Start the counts of a reply; `before` is those of its first part."""
        meter = ReplyMeter(self._clock, self._last.figures["cache"], before)
        self._replies[reply_id] = meter
        return meter

    def set_speculation(self, settings: SpeculationSettings) -> None:
        self.show(
            predictor=settings.predictor,
            controller=settings.controller,
            n_draft=settings.n_draft,
            verification_label=verification_label(settings),
        )

    def show(self, **changes: Any) -> None:
        """Change fields of the snapshot, given by name."""
        self._engine = replace(self._engine, **changes)

    def feed(self, event: Event, reply_id: int = 0) -> None:
        match event:
            case Loaded():
                self._loaded(event)
            case TiersChanged(report):
                self._notes.extend(report.notes)
                self.show(tiers=report, cache_log=tuple(self._notes))
            case ThreadsChanged():
                self.show(threads=event)
            case ServerFigures(figures):
                self.show(server=figures)
            case Waiting(text):
                self.show(waiting=text)
            case SpeculationChanged(predictor, controller, note):
                self.show(predictor=predictor, controller=controller, fault=note)
            case WorkerStopped(will_restart=will_restart):
                for running in tuple(self._replies):
                    self._feed_reply(event, running)
                self._last.feed(event)
                self._stopped(will_restart=will_restart)
            case Failed(fatal=fatal) if fatal or self._engine.phase is Phase.LOADING:
                self.show(phase=Phase.STOPPED, waiting="")
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
        self.show(phase=phase, waiting="", process_bytes=None, tiers=None, buffers=())
        self._last.figures["cache"] = None

    def _loaded(self, event: Loaded) -> None:
        chosen = "" if event.configuration.n_threads is None else "chosen"
        self.set_speculation(event.configuration.speculation)
        self._last.figures["cache"] = None
        self.show(
            phase=Phase.READY,
            model_name=model_title(event.configuration.address),
            file_type=event.file_type,
            n_ctx=event.n_ctx,
            n_ctx_train=event.n_ctx_train,
            n_slots=event.configuration.n_slots,
            threads=None if event.n_threads is None else ThreadsChanged(*event.n_threads, chosen),
            buffers=event.buffers,
            tiers=None,
        )
