"""Counters that the engine's events feed and the screen samples."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from app.chat.snapshot import (
    CockpitSnapshot,
    Phase,
    PlannedBytes,
    Tally,
    tally_of,
    verification_label,
)
from app.format import share
from engine.cache.report import CacheNote
from engine.configuration import Configuration, SpeculationSettings
from engine.events import (
    CacheChanged,
    CostsMeasured,
    Event,
    Failed,
    Finished,
    Loaded,
    PromptProgress,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    ThreadsChanged,
    TiersChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.model.ollama import model_name

BIN_S = 0.5
"""Time that one column of a history stands for, in seconds."""
WINDOW_S = 2.0
"""Time over which the live speed is averaged, in seconds."""
N_BINS = 64
N_VERDICTS = 200
N_NOTES = 200
"""Lines of the cache's log that are kept."""


class Meters:
    """The state of the cockpit; `snapshot` is cheap enough for every frame."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._now = CockpitSnapshot()
        self._earlier = Tally()
        """Finished replies since the model was loaded."""
        self._asked_at: float | None = None
        self._recent: deque[tuple[float, int]] = deque()
        """When tokens came in, and how many, within the window."""
        self._acceptance: deque[float | None] = deque(maxlen=N_BINS)
        self._tps: deque[float | None] = deque(maxlen=N_BINS)
        self._verdicts: deque[bool] = deque(maxlen=N_VERDICTS)
        self._unsettled: list[RoundFinished] = []
        """Rounds that the counters do not hold yet: a hundred a second, for ten frames."""
        self._cache: CacheChanged | None = None
        self._notes: deque[CacheNote] = deque(maxlen=N_NOTES)
        self._bin_start = 0.0
        self._bin_verified = self._bin_accepted = self._bin_emitted = 0

    def snapshot(self) -> CockpitSnapshot:
        """What the panels show now."""
        self._settle()
        self._close_bins()
        return replace(
            self._now,
            session=self._earlier + self._now.reply if self._is_running else self._earlier,
            acceptance_history=tuple(self._acceptance),
            tps_history=tuple(self._tps),
            verdicts=tuple(self._verdicts),
            decode_tps=self._live_tps() if self._is_running else self._now.decode_tps,
        )

    @property
    def phase(self) -> Phase:
        """What the engine is doing."""
        return self._now.phase

    @property
    def n_used(self) -> int:
        """Cells of the context that hold tokens."""
        cache = self._cache or self._now.cache
        return cache.n_used if cache else 0

    def start_load(self, configuration: Configuration) -> None:
        """Count for a model that is being loaded."""
        self._settle()
        self._earlier = Tally()
        self._clear_histories()
        self._now = CockpitSnapshot(
            phase=Phase.LOADING,
            model_name=model_name(configuration.model_path),
            n_ctx=configuration.n_ctx,
            n_slots=configuration.n_slots,
            cache_log=tuple(self._notes),
        )
        self.set_speculation(configuration.speculation)

    def start_reply(self) -> None:
        """Count for a reply that was asked for."""
        self._settle()
        self._asked_at = self._clock()
        self._clear_histories()
        self._now = replace(
            self._now,
            phase=Phase.PREFILL,
            reply=Tally(),
            first_token_s=None,
            prefill=None,
            prefill_s=None,
            reuse_note=None,
            decode_tps=None,
        )

    def set_speculation(self, settings: SpeculationSettings) -> None:
        """Show other settings of speculation."""
        self._now = replace(
            self._now,
            predictor=settings.predictor,
            controller=settings.controller,
            n_draft=settings.n_draft,
            verification_label=verification_label(settings),
        )

    def set_planned(self, planned: PlannedBytes | None) -> None:
        """Show the estimate for the loaded configuration."""
        self._now = replace(self._now, planned=planned)

    def set_process_bytes(self, nbytes: int | None) -> None:
        """Show the memory of the engine's process."""
        self._now = replace(self._now, process_bytes=nbytes)

    def feed(self, event: Event) -> None:
        """Count one event of the engine."""
        match event:
            case Loaded():
                self._loaded(event)
            case PromptProgress() | PromptReady():
                self._prompt(event)
            case TokensCommitted():
                self._committed(event)
            case RoundFinished():
                self._round(event)
            case CacheChanged() | TiersChanged():
                self._kept(event)
            case CostsMeasured() | ThreadsChanged():
                self._measured(event)
            case SpeculationChanged():
                self._speculation_changed(event)
            case Finished():
                self._finished(event)
            case Failed() | WorkerStopped():
                self._failed(event)

    @property
    def _is_running(self) -> bool:
        return self._asked_at is not None

    def _loaded(self, event: Loaded) -> None:
        self._settle()
        self.set_speculation(event.configuration.speculation)
        self._now = replace(
            self._now,
            phase=Phase.READY,
            model_name=model_name(event.configuration.model_path),
            file_type=event.file_type,
            n_ctx=event.n_ctx,
            n_ctx_train=event.n_ctx_train,
            n_slots=event.configuration.n_slots,
            threads=_threads_of(event),
            buffers=event.buffers,
            cache=None,
            tiers=None,
        )

    def _measured(self, event: CostsMeasured | ThreadsChanged) -> None:
        if isinstance(event, CostsMeasured):
            self._now = replace(self._now, costs=event)
        else:
            self._now = replace(self._now, threads=event)

    def _kept(self, event: CacheChanged | TiersChanged) -> None:
        if isinstance(event, CacheChanged):
            self._cache = event
            return
        self._notes.extend(event.report.notes)
        self._now = replace(self._now, tiers=event.report, cache_log=tuple(self._notes))

    def _prompt(self, event: PromptProgress | PromptReady) -> None:
        if isinstance(event, PromptProgress):
            self._now = replace(self._now, phase=Phase.PREFILL, prefill=event)
        else:
            self._now = replace(
                self._now,
                phase=Phase.DECODING,
                prefill=None,
                prefill_s=event.elapsed_s,
                reuse_note=event.note,
            )

    def _committed(self, event: TokensCommitted) -> None:
        now = self._clock()
        if self._now.first_token_s is None and self._asked_at is not None:
            self._now = replace(self._now, first_token_s=now - self._asked_at)
            self._bin_start = now
        self._recent.append((now, len(event.tokens)))
        self._bin_emitted += len(event.tokens)

    def _round(self, event: RoundFinished) -> None:
        self._bin_verified += event.n_verified
        self._bin_accepted += event.n_accepted
        self._verdicts.extend(event.verdicts)
        self._unsettled.append(event)

    def _settle(self) -> None:
        """Bring the counters up to the last round."""
        if self._cache is not None:
            self._now = replace(self._now, cache=self._cache)
            self._cache = None
        if not self._unsettled:
            return
        reply = self._now.reply
        for event in self._unsettled:
            reply = reply.with_round(event)
        last = self._unsettled[-1]
        self._unsettled.clear()
        self._now = replace(
            self._now,
            reply=reply,
            next_length=last.next_length,
            reason=last.reason,
            plain_spread=last.plain_spread,
        )

    def _speculation_changed(self, event: SpeculationChanged) -> None:
        self._now = replace(
            self._now,
            predictor=event.predictor,
            controller=event.controller,
            fault=event.note,
        )

    def _finished(self, event: Finished) -> None:
        stats = event.stats
        self._ended(Phase.READY, tally_of(stats))
        self._now = replace(
            self._now,
            decode_tps=stats.decode_tps,
            first_token_s=stats.first_token_s,
            prefill_s=stats.prefill_s or None,
        )

    def _failed(self, event: Failed | WorkerStopped) -> None:
        if isinstance(event, WorkerStopped):
            self._ended(Phase.LOADING if event.will_restart else Phase.STOPPED)
            self._now = replace(self._now, process_bytes=None, cache=None, tiers=None, buffers=())
        else:
            is_over = event.fatal or self.phase is Phase.LOADING
            self._ended(Phase.STOPPED if is_over else Phase.READY)

    def _ended(self, phase: Phase, reply: Tally | None = None) -> None:
        """Close the running reply; a reply that was cut counts as far as it came."""
        self._settle()
        if self._is_running:
            live_tps = self._live_tps()
            self._now = replace(self._now, reply=reply or self._now.reply, decode_tps=live_tps)
            self._earlier = self._earlier + self._now.reply
        self._asked_at = None
        self._recent.clear()
        self._now = replace(self._now, phase=phase, prefill=None)

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

    def _close_bins(self) -> None:
        if not self._is_running or self._now.first_token_s is None:
            return
        now = self._clock()
        if now - self._bin_start < BIN_S:
            return
        self._acceptance.append(share(self._bin_accepted, self._bin_verified))
        self._tps.append(share(self._bin_emitted, now - self._bin_start))
        self._bin_start = now
        self._bin_verified = self._bin_accepted = self._bin_emitted = 0

    def _clear_histories(self) -> None:
        self._acceptance.clear()
        self._tps.clear()
        self._verdicts.clear()
        self._recent.clear()
        self._bin_verified = self._bin_accepted = self._bin_emitted = 0


def _threads_of(event: Loaded) -> ThreadsChanged | None:
    if event.n_threads is None:
        return None
    is_chosen = event.configuration.n_threads is not None
    return ThreadsChanged(*event.n_threads, "chosen" if is_chosen else "")
