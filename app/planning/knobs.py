"""The knobs of the planner: how each is shown, turned and typed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from app.planning.plan import Setup
from app.planning.values import (
    BATCHES,
    CONTEXTS,
    GPU_SIZES,
    KnobError,
    parse_count,
    parse_layers,
    parse_sizes,
    step_among,
    step_round,
)
from app.render import format as fmt
from engine.configuration import (
    Configuration,
    DraftConfiguration,
    FlashAttention,
    PredictorName,
)
from engine.memory.estimate import TARGETS
from engine.memory.fit import with_n_ctx
from engine.memory.kv_types import KV_TYPES
from engine.memory.units import format_bytes
from engine.model.architecture import Model

T = TypeVar("T")
FLASH: tuple[FlashAttention, ...] = ("auto", "on", "off")
DRAFT = "draft"
MAX_CONTEXT, MAX_BATCH, MAX_SLOTS = 16 * 1024**2, 65536, 256


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose."""

    name: str
    label: str
    help: str
    shown: Callable[[Setup], str]
    turned: Callable[[Setup, Model, int], Setup]
    """The setup one step on or back; the same one at an end."""
    read: Callable[[Setup, str], Setup] | None = None
    """The setup with a typed value, raises `KnobError`; None where values are chosen only."""
    is_idle: Callable[[Setup], bool] = lambda _: False
    """Whether it changes nothing in this setup."""


def with_draft(setup: Setup, path: Path | None) -> Setup:
    """Put a draft model beside the target, or take it away; the predictor follows."""
    now = setup.configuration
    speculation, draft = now.speculation, None
    if path is not None:
        draft = DraftConfiguration(path, n_ctx=now.n_ctx)
        speculation = replace(speculation, predictor=PredictorName.DRAFT)
    elif speculation.predictor is PredictorName.DRAFT:
        speculation = replace(speculation, predictor=PredictorName.LOOKUP)
    return _with(setup, replace(now, draft=draft, speculation=speculation))


def _with(setup: Setup, configuration: Configuration) -> Setup:
    return replace(setup, configuration=configuration)


def _choice(
    name: str,
    label: str,
    text: str,
    values: Sequence[T],
    get: Callable[[Setup], T],
    put: Callable[[Setup, T], Setup],
) -> Knob:
    def read(setup: Setup, typed: str) -> Setup:
        for value in values:
            if str(value) == typed.strip().lower():
                return put(setup, value)
        raise KnobError(f"{typed!r} is none of {', '.join(map(str, values))}")

    return Knob(
        name,
        label,
        text,
        lambda setup: str(get(setup)),
        lambda setup, _, step: put(setup, step_round(values, get(setup), step)),
        read,
    )


def _put_context(setup: Setup, n_ctx: int) -> Setup:
    return _with(setup, with_n_ctx(setup.configuration, n_ctx))


def _turn_context(setup: Setup, model: Model, step: int) -> Setup:
    stops = (*CONTEXTS, model.architecture.n_ctx_train)
    return _put_context(setup, step_among(stops, setup.configuration.n_ctx, step))


def _put_batch(setup: Setup, n_batch: int) -> Setup:
    """Change the batch; the micro batch is never larger."""
    now = setup.configuration
    return _with(setup, replace(now, n_batch=n_batch, n_ubatch=min(now.n_ubatch, n_batch)))


def _put_ubatch(setup: Setup, n_ubatch: int) -> Setup:
    return _with(setup, replace(setup.configuration, n_ubatch=n_ubatch))


def _turn_ubatch(setup: Setup, _: Model, step: int) -> Setup:
    now = setup.configuration
    stops = [n for n in (*BATCHES, now.n_batch) if n <= now.n_batch]
    return _put_ubatch(setup, step_among(stops, now.n_ubatch, step))


def _read_ubatch(setup: Setup, text: str) -> Setup:
    n_ubatch = parse_count(text, low=1, high=MAX_BATCH)
    if n_ubatch > setup.configuration.n_batch:
        raise KnobError(
            f"{n_ubatch:,} is more than the batch of {setup.configuration.n_batch:,}: raise that "
            "first"
        )
    return _put_ubatch(setup, n_ubatch)


def _put_layers(setup: Setup, n_gpu_layers: int) -> Setup:
    return _with(setup, replace(setup.configuration, n_gpu_layers=n_gpu_layers))


def _turn_layers(setup: Setup, model: Model, step: int) -> Setup:
    n_all = model.architecture.n_layers + 1
    now = setup.configuration.n_gpu_layers
    n_layers = (n_all if now < 0 else min(now, n_all)) + step
    return _put_layers(setup, -1 if n_layers >= n_all else max(n_layers, 0))


def _shown_layers(setup: Setup) -> str:
    n_layers = setup.configuration.n_gpu_layers
    return "all" if n_layers < 0 else str(n_layers)


def _put_slots(setup: Setup, n_slots: int) -> Setup:
    return _with(setup, replace(setup.configuration, n_slots=n_slots))


def _turn_vram(setup: Setup, _: Model, step: int) -> Setup:
    now = setup.vram_bytes
    if len(now) > 1:
        return replace(setup, vram_bytes=())
    stop = step_among((0, *GPU_SIZES), now[0] if now else 0, step)
    return replace(setup, vram_bytes=(stop,) if stop else ())


def _shown_vram(setup: Setup) -> str:
    return " + ".join(format_bytes(nbytes) for nbytes in setup.vram_bytes) or "found"


def _shown_draft(setup: Setup) -> str:
    draft = setup.configuration.draft
    return "none" if draft is None else draft.model_path.stem


def _serves_one(setup: Setup) -> bool:
    return setup.target == "kvchat"


def _shares_nothing(setup: Setup) -> bool:
    return setup.target == "kvchat" or setup.configuration.n_slots == 1


KNOBS: tuple[Knob, ...] = (
    Knob(
        "n_ctx", "context", "Tokens of context, of all slots together. Type 8192 or 8k.",
        lambda setup: fmt.count(setup.configuration.n_ctx),
        _turn_context,
        lambda setup, text: _put_context(setup, parse_count(text, low=1, high=MAX_CONTEXT)),
    ),
    _choice(
        "type_k", "K type", "Type of the cached keys: fewer bits, less memory, less exact.",
        tuple(KV_TYPES),
        lambda setup: setup.configuration.type_k,
        lambda setup, name: _with(setup, replace(setup.configuration, type_k=name)),
    ),
    _choice(
        "type_v", "V type", "Type of the cached values. Packed types need flash attention.",
        tuple(KV_TYPES),
        lambda setup: setup.configuration.type_v,
        lambda setup, name: _with(setup, replace(setup.configuration, type_v=name)),
    ),
    _choice(
        "flash_attention", "flash attn", "Attention without the large table of scores.",
        FLASH,
        lambda setup: setup.configuration.flash_attention,
        lambda setup, value: _with(setup, replace(setup.configuration, flash_attention=value)),
    ),
    Knob(
        "n_batch", "batch", "Tokens handed over at a time.",
        lambda setup: fmt.count(setup.configuration.n_batch),
        lambda setup, _, step: _put_batch(
            setup, step_among(BATCHES, setup.configuration.n_batch, step)
        ),
        lambda setup, text: _put_batch(setup, parse_count(text, low=1, high=MAX_BATCH)),
    ),
    Knob(
        "n_ubatch", "ubatch", "Tokens computed at once: the compute buffer grows with them.",
        lambda setup: fmt.count(setup.configuration.n_ubatch), _turn_ubatch, _read_ubatch,
    ),
    Knob(
        "n_gpu_layers", "GPU layers", "Layers on the GPU, the output counting as one, or all.",
        _shown_layers, _turn_layers,
        lambda setup, text: _put_layers(setup, parse_layers(text)),
    ),
    _choice(
        "target", "program", "What is to run it: programs differ in slots and rows of logits.",
        TARGETS,
        lambda setup: setup.target,
        lambda setup, target: replace(setup, target=target),
    ),
    Knob(
        "n_slots", "slots", "Requests that llama-server answers side by side.",
        lambda setup: fmt.count(setup.configuration.n_slots),
        lambda setup, _, step: _put_slots(
            setup, min(max(setup.configuration.n_slots + step, 1), MAX_SLOTS)
        ),
        lambda setup, text: _put_slots(setup, parse_count(text, low=1, high=MAX_SLOTS)),
        _serves_one,
    ),
    replace(
        _choice(
            "kv_unified", "unified", "Whether the slots share their cells.",
            ("no", "yes"),
            lambda setup: "yes" if setup.configuration.kv_unified else "no",
            lambda setup, value: _with(
                setup, replace(setup.configuration, kv_unified=value == "yes")
            ),
        ),
        is_idle=_shares_nothing,
    ),
    Knob(
        "vram", "GPU memory", "That of the GPUs found, or sizes to plan for. Type 8GiB, 24GiB.",
        _shown_vram, _turn_vram,
        lambda setup, text: replace(setup, vram_bytes=parse_sizes(text)),
    ),
    Knob(
        DRAFT, "draft model", "A small model that guesses ahead: right chooses, left takes it off.",
        _shown_draft,
        lambda setup, _, step: with_draft(setup, None) if step < 0 else setup,
    ),
)  # fmt: skip
