"""What the cockpit shows at one moment, as plain values: the panels' only input."""

from dataclasses import dataclass, field
from enum import StrEnum

from app.chat.tally import Tally
from engine.cache.report import CacheNote, CacheReport
from engine.events import BufferSize, CacheChanged, CostsMeasured, PromptProgress

NO_MODEL = "No model is loaded: ctrl+o opens or installs one, f2 plans what would fit."
"""What to do where something is asked of nobody."""


class Phase(StrEnum):
    """What the engine is doing."""

    EMPTY = "no model"
    LOADING = "loading"
    READY = "ready"
    PREFILL = "reading the prompt"
    DECODING = "answering"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class PlannedBytes:
    """What an estimate says before a model is loaded, on all devices together."""

    buffers: int
    """Of llama.cpp: what it tells when it has loaded is compared with this."""
    overhead: int
    """Of the process and the drivers beside them; the planner's sums hold it too."""


@dataclass(frozen=True, slots=True)
class CockpitSnapshot:
    """Everything that the panels and the status line show."""

    phase: Phase = Phase.EMPTY
    model_name: str = ""
    file_type: str = ""
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    predictor: str = ""
    controller: str = ""
    n_draft: int | None = None
    """Draft length that the user set."""
    judging: tuple[str, ...] = ()
    """How drafts are judged, where it is not the usual way."""
    next_length: int | None = None
    """Draft length that the controller chose for the next round."""
    reason: str = ""
    """Why the controller chose it."""
    fault: str | None = None
    """Why another predictor is at work than was asked for, or none."""
    costs: CostsMeasured | None = None
    """What batches cost, None before that was measured."""
    reply: Tally = field(default_factory=Tally)
    session: Tally = field(default_factory=Tally)
    """All replies since the model was loaded, the running one included."""
    acceptance_history: tuple[float | None, ...] = ()
    verdicts: tuple[bool, ...] = ()
    decode_tps: float | None = None
    """Over the last two seconds while a reply runs, over all of it afterwards."""
    plain_spread: float | None = None
    """How far plain steps are from one another, as a share: the noise of the machine."""
    tps_history: tuple[float | None, ...] = ()
    first_token_s: float | None = None
    prefill: PromptProgress | None = None
    """Set while the prompt is being read."""
    prefill_s: float | None = None
    cache: CacheChanged | None = None
    is_of_chat: bool = True
    """The cells hold the shown chat, or the one that is answered while another one is shown."""
    reuse_note: str | None = None
    """Why less of the prompt was reused than could have been."""
    n_slots: int = 1
    """Sequences that the context has room for."""
    tiers: CacheReport | None = None
    """The cache's last report, None before there is one."""
    cache_log: tuple[CacheNote, ...] = ()
    """What the cache's reports noted, oldest first; a bounded number."""
    buffers: tuple[BufferSize, ...] = ()
    planned: PlannedBytes | None = None
    process_bytes: int | None = None
    elsewhere: str | None = None
    """Title of the chat that is being answered while another one is shown."""
