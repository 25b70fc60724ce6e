"""All that the cockpit shows at one moment, and the counts of replies."""

from dataclasses import dataclass
from enum import StrEnum

from engine.cache.report import CacheNote, CacheReport
from engine.configuration import SpeculationSettings
from engine.events import (
    NOTHING_COUNTED,
    BufferSize,
    CacheChanged,
    GenerationStats,
    PromptProgress,
    PromptReady,
    ServerFigure,
    Thinking,
    ThreadsChanged,
)


def verification_label(settings: SpeculationSettings) -> tuple[str, ...]:
    """The settings of verification that differ from the usual: its name, `no bonus`."""
    words = {
        settings.verification: settings.verification != "coupled",
        "no bonus": not settings.bonus_token,
    }
    return tuple(word for word, is_unusual in words.items() if is_unusual)


NO_MODEL = (
    "No model is loaded: {model-list} opens or installs a model, {model-plan} shows what fits."
)
"""Shown where a question has no model to answer it."""


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
    """Estimate before a model is loaded, on all devices together."""

    buffers: int
    """Of llama.cpp; compared with the buffers that it reports once it has loaded."""
    overhead: int
    """Of the process and the drivers beside them; the planner's sums hold it too."""
    reclaimable: int = 0
    """Mapped pages beside both that the system may take back: their weights were repacked."""


@dataclass(frozen=True, slots=True)
class CockpitSnapshot:
    """Everything that the panels and the status line show."""

    phase: Phase = Phase.EMPTY
    waiting: str = ""
    """For which other program the engine waits."""
    model_name: str = ""
    file_type: str = ""
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    predictor: str = ""
    controller: str = ""
    n_draft: int | None = None
    """Draft length that the user set."""
    verification_label: tuple[str, ...] = ()
    """How drafts are verified, where that is not the usual way."""
    next_length: int | None = None
    """Draft length that the controller chose for the next round."""
    reason: str = ""
    """Why the controller chose it."""
    fault: str | None = None
    """Why another predictor is at work than was asked for, or none."""
    threads: ThreadsChanged | None = None
    """What the engine computes with, None before a model is loaded."""
    reply: GenerationStats = NOTHING_COUNTED
    session: GenerationStats = NOTHING_COUNTED
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
    prefill_left_s: float | None = None
    """Estimated time until the prompt is read; None until a batch was timed."""
    prefill_s: float | None = None
    cache: CacheChanged | None = None
    is_of_chat: bool = True
    """The cells hold the shown chat, or the one that is answered while another one is shown."""
    n_of_chat: int | None = None
    """About how many tokens the shown chat has, where the cells do not hold it."""
    n_written: int | None = 0
    """Tokens that what stands in the composer would add; None while they are counted, 0
    where nobody can count."""
    prompt: PromptReady | None = None
    """Where the last prompt of the shown chat came from; None before it was read."""
    n_slots: int = 1
    """Sequences of the context."""
    tiers: CacheReport | None = None
    """The cache's last report, None before there is one."""
    cache_log: tuple[CacheNote, ...] = ()
    """What the cache's reports noted, oldest first; a bounded number."""
    buffers: tuple[BufferSize, ...] = ()
    planned: PlannedBytes | None = None
    process_bytes: int | None = None
    server: tuple[ServerFigure, ...] = ()
    """A server's own counters, and those that it does not report."""
    background_title: str | None = None
    """Title of the chat that is being answered while another one is shown."""
    thinking: Thinking | None = None
    """How far the thinking of the reply is; None where it does not think."""
    n_beside: int = 0
    """Replies under way beside the one whose figures these are."""
