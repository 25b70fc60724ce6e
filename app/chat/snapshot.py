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
    """The settings of verification that differ from the default: its name, `no bonus`."""
    name = () if settings.verification == "coupled" else (settings.verification,)
    return name if settings.bonus_token else (*name, "no bonus")


NO_MODEL = (
    "No model is loaded: {model-list} opens or installs a model, {model-plan} shows what fits."
)
"""Shown where a question has no model to answer it."""


class Phase(StrEnum):
    """Activity of the engine."""

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
    """Bytes of llama.cpp's buffers, which are known once the model is loaded."""
    overhead: int
    """Estimated bytes of the process and the drivers."""
    reclaimable: int = 0
    """Mapped pages of repacked weights, which the system may take back."""


@dataclass(frozen=True, slots=True)
class CockpitSnapshot:
    """Everything that the panels and the status line show."""

    phase: Phase = Phase.EMPTY
    waiting: str = ""
    """The other program that the engine waits for."""
    model_name: str = ""
    file_type: str = ""
    n_ctx: int | None = None
    n_ctx_train: int | None = None
    predictor: str = ""
    controller: str = ""
    n_draft: int | None = None
    """Draft length that the user set."""
    verification_label: tuple[str, ...] = ()
    next_length: int | None = None
    """Draft length that the controller chose for the next round."""
    reason: str = ""
    """Why the controller chose it."""
    fault: str | None = None
    """Why another predictor, or none, is used."""
    threads: ThreadsChanged | None = None
    """None before a model is loaded."""
    reply: GenerationStats = NOTHING_COUNTED
    session: GenerationStats = NOTHING_COUNTED
    """All replies since the model was loaded, with the running one."""
    acceptance_history: tuple[float | None, ...] = ()
    verdicts: tuple[bool, ...] = ()
    decode_tps: float | None = None
    """Decode speed over the last two seconds of a running reply, or over a whole finished one."""
    plain_spread: float | None = None
    """Relative deviation of plain steps: the noise of the machine."""
    tps_history: tuple[float | None, ...] = ()
    first_token_s: float | None = None
    prefill: PromptProgress | None = None
    """None except during a prefill."""
    prefill_left_s: float | None = None
    """Estimated time to the end of the prefill; None until a batch was timed."""
    prefill_s: float | None = None
    cache: CacheChanged | None = None
    is_of_chat: bool = True
    """Whether the cells hold the shown chat, or another that is being answered."""
    n_of_chat: int | None = None
    """Estimated tokens of the shown chat if the cells do not hold it."""
    n_written: int | None = 0
    """Tokens of the text in the composer; None while they are counted, 0 without a tokenizer."""
    prompt: PromptReady | None = None
    """The last prompt of the shown chat."""
    n_slots: int = 1
    """Sequences of the context."""
    tiers: CacheReport | None = None
    """The cache's last report."""
    cache_log: tuple[CacheNote, ...] = ()
    """Notes of the cache's reports, oldest first; a bounded number."""
    buffers: tuple[BufferSize, ...] = ()
    planned: PlannedBytes | None = None
    process_bytes: int | None = None
    server: tuple[ServerFigure, ...] = ()
    """A server's own counters, and those that it does not report."""
    background_title: str | None = None
    """Title of the chat that is being answered while another one is shown."""
    thinking: Thinking | None = None
    """Progress of the reply's thinking."""
    n_beside: int = 0
    """Number of other running replies."""
