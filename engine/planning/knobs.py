"""The knobs of the planner, in the order of the screen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from engine.configuration import (
    DRAFT_N_CTX,
    MAX_DRAFT,
    Configuration,
    DraftConfiguration,
    FlashAttention,
    KVTypeName,
    PredictorName,
    SplitMode,
)
from engine.errors import HardwareError
from engine.memory.fit import with_n_ctx
from engine.memory.kv_cache import KV_TYPES, is_quantized
from engine.memory.terms import TARGETS
from engine.memory.units import format_bytes, parse_bytes
from engine.planning.planner import Facts, Setup
from engine.planning.values import (
    BATCHES,
    CONTEXTS,
    MARGINS,
    KnobError,
    one_memory,
    parse_count,
    parse_devices,
    parse_file,
    parse_layers,
    parse_ram,
    parse_shares,
    shown_devices,
    shown_ram,
    step_among,
    step_round,
    turned_devices,
    turned_ram,
)

T = TypeVar("T")
Chooser = Literal["draft", "projector", "adapter", "device"]


def never_idle(setup: Setup, facts: Facts) -> str:
    """Say that a knob always counts."""
    del setup, facts
    return ""


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose."""

    name: str
    label: str
    help: str
    shown: Callable[[Setup], str]
    turned: Callable[[Setup, Facts, int], Setup]
    """The setup one step on or back; the same one at an end."""
    read: Callable[[Setup, str], Setup] | None = None
    """The setup with a typed value, raises `KnobError`; None where values are chosen only."""
    idle: Callable[[Setup, Facts], str] = never_idle
    """Why it changes nothing in this setup; empty where it counts."""
    chooser: Chooser | None = None
    """What is chosen from a list when the knob is turned on."""


def choice(
    name: str,
    label: str,
    text: str,
    values: Sequence[T],
    get: Callable[[Setup], T],
    put: Callable[[Setup, T], Setup],
    *,
    idle: Callable[[Setup, Facts], str] = never_idle,
) -> Knob:
    """Make a knob of a closed set, which is turned round and typed by its words."""

    def read(setup: Setup, typed: str) -> Setup:
        for value in values:
            if str(value).lower() == typed.strip().lower():
                return put(setup, value)
        raise KnobError(f"{typed!r} is none of {', '.join(map(str, values))}")

    return Knob(
        name,
        label,
        text,
        lambda setup: str(get(setup)),
        lambda setup, _, step: put(setup, step_round(values, get(setup), step)),
        read,
        idle,
    )


def with_configuration(setup: Setup, configuration: Configuration) -> Setup:
    """Put another configuration into a setup."""
    return replace(setup, configuration=configuration)


FLASH: tuple[FlashAttention, ...] = ("auto", "on", "off")
MAX_CONTEXT, MAX_BATCH = 16 * 1024**2, 65536


def put_context(setup: Setup, n_ctx: int) -> Setup:
    """Change the context, and that of a draft model with it."""
    return with_configuration(setup, with_n_ctx(setup.configuration, n_ctx))


def _turn_context(setup: Setup, facts: Facts, step: int) -> Setup:
    stops = (*CONTEXTS, facts.model.architecture.n_ctx_train)
    return put_context(setup, step_among(stops, setup.configuration.n_ctx, step))


def _put_batch(setup: Setup, n_batch: int) -> Setup:
    """Change the batch; the micro batch is never larger."""
    now = setup.configuration
    changed = replace(now, n_batch=n_batch, n_ubatch=min(now.n_ubatch, n_batch))
    return with_configuration(setup, changed)


def _put_ubatch(setup: Setup, n_ubatch: int) -> Setup:
    return with_configuration(setup, replace(setup.configuration, n_ubatch=n_ubatch))


def _turn_ubatch(setup: Setup, _: Facts, step: int) -> Setup:
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


def _no_window(setup: Setup, facts: Facts) -> str:
    del setup
    layers = facts.model.architecture.layers.values()
    return (
        "" if any(layer.window is not None for layer in layers) else "no layer of this model slides"
    )


def settled(setup: Setup, facts: Facts) -> Setup:
    """Give the values the type of the keys where a model keeps both in one tensor."""
    now = setup.configuration
    if not facts.model.architecture.needs_one_type or now.type_k == now.type_v:
        return setup
    return with_configuration(setup, replace(now, type_v=now.type_k))


def _one_tensor(setup: Setup, facts: Facts) -> str:
    del setup
    is_one = facts.model.architecture.needs_one_type
    return "keys and values are one tensor: K type says both" if is_one else ""


def _with_values(configuration: Configuration, name: KVTypeName) -> Configuration:
    """Give the values a type; packed ones take flash attention along, which they need."""
    flash = configuration.flash_attention
    needs_flash = flash == "off" and is_quantized(name)
    return replace(configuration, type_v=name, flash_attention="auto" if needs_flash else flash)


CACHE_KNOBS: tuple[Knob, ...] = (
    Knob(
        "n_ctx", "context", "Tokens of context, of all slots together. Type 8192 or 8k.",
        lambda setup: f"{setup.configuration.n_ctx:,}",
        _turn_context,
        lambda setup, text: put_context(setup, parse_count(text, low=1, high=MAX_CONTEXT)),
    ),
    choice(
        "type_k", "K type", "Type of the cached keys: fewer bits, less memory, less exact.",
        tuple(KV_TYPES),
        lambda setup: setup.configuration.type_k,
        lambda setup, name: with_configuration(
            setup, replace(setup.configuration, type_k=name)
        ),
    ),
    choice(
        "type_v", "V type", "Type of the cached values. Packed types need flash attention.",
        tuple(KV_TYPES),
        lambda setup: setup.configuration.type_v,
        lambda setup, name: with_configuration(setup, _with_values(setup.configuration, name)),
        idle=_one_tensor,
    ),
    choice(
        "flash_attention", "flash attn", "Attention without the large table of scores.",
        FLASH,
        lambda setup: setup.configuration.flash_attention,
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, flash_attention=value)
        ),
    ),
    choice(
        "swa_full", "SWA cache", "Whether layers with a sliding window keep every token.",
        ("window", "full"),
        lambda setup: "full" if setup.configuration.swa_full else "window",
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, swa_full=value == "full")
        ),
        idle=_no_window,
    ),
    Knob(
        "n_batch", "batch", "Tokens handed over at a time.",
        lambda setup: f"{setup.configuration.n_batch:,}",
        lambda setup, _, step: _put_batch(
            setup, step_among(BATCHES, setup.configuration.n_batch, step)
        ),
        lambda setup, text: _put_batch(setup, parse_count(text, low=1, high=MAX_BATCH)),
    ),
    Knob(
        "n_ubatch", "ubatch", "Tokens computed at once: the compute buffer grows with them.",
        lambda setup: f"{setup.configuration.n_ubatch:,}", _turn_ubatch, _read_ubatch,
    ),
)  # fmt: skip


SPLIT_MODES: tuple[SplitMode, ...] = ("layer", "none")
SHARE_STEP = 5
"""Percent that a turn moves from one GPU to the others."""


def no_gpu(setup: Setup, facts: Facts) -> str:
    """Say that there is no GPU to put anything on."""
    del setup
    return "" if facts.gpus else "there is no GPU: everything lies in main memory"


def _nothing_on_gpu(setup: Setup, facts: Facts) -> str:
    if setup.configuration.n_gpu_layers == 0 and facts.gpus:
        return "no layer is on a GPU"
    return no_gpu(setup, facts)


def _no_experts(setup: Setup, facts: Facts) -> str:
    if not facts.model.architecture.is_moe:
        return "this model has no experts"
    return _nothing_on_gpu(setup, facts)


def _one_gpu(setup: Setup, facts: Facts) -> str:
    if len(facts.gpus) == 1:
        return "there is one GPU only"
    return _nothing_on_gpu(setup, facts)


def _not_alone(setup: Setup, facts: Facts) -> str:
    if setup.configuration.split_mode != "none" and len(facts.gpus) > 1:
        return "split layer uses every GPU"
    return _one_gpu(setup, facts)


def _not_split(setup: Setup, facts: Facts) -> str:
    if setup.configuration.split_mode == "none" and len(facts.gpus) > 1:
        return "split none uses one GPU"
    return _one_gpu(setup, facts)


def _changed(setup: Setup, **values: object) -> Setup:
    now: Configuration = replace(setup.configuration, **values)  # type: ignore[arg-type]  # by name
    return with_configuration(setup, now)


def _turn_layers(setup: Setup, facts: Facts, step: int) -> Setup:
    n_all = facts.model.architecture.n_layers + 1
    now = setup.configuration.n_gpu_layers
    n_layers = (n_all if now < 0 else min(now, n_all)) + step
    return _changed(setup, n_gpu_layers=-1 if n_layers >= n_all else max(n_layers, 0))


def _turn_experts(setup: Setup, facts: Facts, step: int) -> Setup:
    n_all = facts.model.architecture.n_layers
    now = setup.configuration.n_cpu_moe
    n_layers = (n_all if now < 0 else min(now, n_all)) + step
    return _changed(setup, n_cpu_moe=-1 if n_layers >= n_all else max(n_layers, 0))


def _all_or(number: int) -> str:
    return "all" if number < 0 else str(number)


def _shown_experts(setup: Setup) -> str:
    number = setup.configuration.n_cpu_moe
    return "none" if number == 0 else _all_or(number)


def _read_experts(setup: Setup, text: str) -> Setup:
    number = 0 if text.strip().lower() == "none" else parse_layers(text)
    return _changed(setup, n_cpu_moe=number)


def _turn_main(setup: Setup, facts: Facts, step: int) -> Setup:
    last = max(len(facts.gpus) - 1, 0)
    return _changed(setup, main_gpu=min(max(setup.configuration.main_gpu + step, 0), last))


def _percents(setup: Setup, facts: Facts) -> list[int]:
    """Give the share of each GPU in percent; without a split, that of its free memory."""
    shares: list[float] = list(setup.configuration.tensor_split)
    if len(shares) != len(facts.gpus):
        shares = [float(gpu.free_bytes) for gpu in facts.gpus]
    total = sum(shares) or 1.0
    return [round(100 * share / total) for share in shares]


def _turn_split(setup: Setup, facts: Facts, step: int) -> Setup:
    """Move a share between the first GPU and the others."""
    first, *others = _percents(setup, facts) or [100]
    now = SHARE_STEP * round(first / SHARE_STEP)
    wanted = min(max(now + SHARE_STEP * step, SHARE_STEP), 100 - SHARE_STEP)
    if not others or wanted == now:
        return setup
    rest = sum(others) or 1
    shares = [round((100 - wanted) * share / rest) for share in others]
    shares[-1] += 100 - wanted - sum(shares)
    return _changed(setup, tensor_split=(float(wanted), *map(float, shares)))


def _shown_split(setup: Setup) -> str:
    return ":".join(f"{share:g}" for share in setup.configuration.tensor_split) or "auto"


PLACEMENT_KNOBS: tuple[Knob, ...] = (
    Knob(
        "n_gpu_layers", "GPU layers", "Layers on the GPU, the output counting as one, or all.",
        lambda setup: _all_or(setup.configuration.n_gpu_layers), _turn_layers,
        lambda setup, text: _changed(setup, n_gpu_layers=parse_layers(text)),
        no_gpu,
    ),
    choice(
        "offload_kqv", "KV cache on", "Where the cache of the layers on the GPU lies.",
        ("GPU", "CPU"),
        lambda setup: "GPU" if setup.configuration.offload_kqv else "CPU",
        lambda setup, value: _changed(setup, offload_kqv=value == "GPU"),
        idle=_nothing_on_gpu,
    ),
    Knob(
        "n_cpu_moe", "CPU experts",
        "First layers whose experts stay in main memory: a number, none or all.",
        _shown_experts, _turn_experts, _read_experts, _no_experts,
    ),
    choice(
        "split_mode", "split", "Whether the GPUs share the layers, or one takes them all.",
        SPLIT_MODES,
        lambda setup: setup.configuration.split_mode,
        lambda setup, value: _changed(setup, split_mode=value),
        idle=_one_gpu,
    ),
    Knob(
        "tensor_split", "GPU shares", "Share of each GPU in the layers. Type 3:1 or auto.",
        _shown_split, _turn_split,
        lambda setup, text: _changed(setup, tensor_split=parse_shares(text)),
        _not_split,
    ),
    Knob(
        "main_gpu", "main GPU", "The GPU that takes everything.",
        lambda setup: str(setup.configuration.main_gpu), _turn_main,
        lambda setup, text: _changed(setup, main_gpu=parse_count(text, low=0, high=15)),
        _not_alone,
    ),
)  # fmt: skip


MAX_SLOTS = 256


def _put_slots(setup: Setup, n_slots: int) -> Setup:
    return with_configuration(setup, replace(setup.configuration, n_slots=n_slots))


def _shares_nothing(setup: Setup, facts: Facts) -> str:
    del facts
    return "one slot shares with nobody" if setup.configuration.n_slots == 1 else ""


def _read_margin(setup: Setup, text: str) -> Setup:
    if text.strip().rstrip("BbGgMmKki ") == "0":
        return replace(setup, margin_bytes=0)
    try:
        return replace(setup, margin_bytes=parse_bytes(text))
    except HardwareError as error:
        raise KnobError(f"{error}; 0 keeps nothing free") from error


MACHINE_KNOBS: tuple[Knob, ...] = (
    choice(
        "target", "program", "What is to run it: programs differ in slots and rows of logits.",
        TARGETS,
        lambda setup: setup.target,
        lambda setup, target: replace(setup, target=target),
    ),
    Knob(
        "n_slots", "slots",
        "Chats that kvchat holds, or requests that llama-server answers, side by side.",
        lambda setup: f"{setup.configuration.n_slots:,}",
        lambda setup, _, step: _put_slots(
            setup, min(max(setup.configuration.n_slots + step, 1), MAX_SLOTS)
        ),
        lambda setup, text: _put_slots(setup, parse_count(text, low=1, high=MAX_SLOTS)),
    ),
    choice(
        "kv_unified", "unified",
        "Whether the slots share their cells: a common start is held once, and neighbours change "
        "each other's rounding.",
        ("no", "yes"),
        lambda setup: "yes" if setup.configuration.kv_unified else "no",
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, kv_unified=value == "yes")
        ),
        idle=_shares_nothing,
    ),
    Knob(
        "vram", "GPUs", "Those found, or others to plan for: type 8GiB, 2x24GiB or a card's name; "
        "d lists cards.",
        shown_devices, turned_devices, parse_devices, chooser="device",
    ),
    Knob(
        "ram", "main memory", "What is free here, or a size to plan for. Type 32GiB or found.",
        shown_ram, turned_ram, parse_ram, one_memory,
    ),
    Knob(
        "margin", "keep free", "Memory that stays free on every device. Type 512MiB or 0.",
        lambda setup: format_bytes(setup.margin_bytes),
        lambda setup, _, step: replace(
            setup, margin_bytes=step_among(MARGINS, setup.margin_bytes, step)
        ),
        _read_margin,
    ),
)  # fmt: skip


NONE = "none"


def with_draft(setup: Setup, path: Path | None) -> Setup:
    """Put a draft model beside the target, or take it away; the predictor follows."""
    now = setup.configuration
    speculation, draft = now.speculation, None
    if path is not None:
        draft = DraftConfiguration(path, n_ctx=min(now.n_ctx, DRAFT_N_CTX))
        speculation = replace(speculation, predictor=PredictorName.DRAFT)
    elif speculation.predictor is PredictorName.DRAFT:
        speculation = replace(speculation, predictor=PredictorName.SUFFIX)
    return with_configuration(setup, replace(now, draft=draft, speculation=speculation))


def with_projector(setup: Setup, path: Path | None) -> Setup:
    """Put a projector for images or sound beside the model, or take it away."""
    return with_configuration(setup, replace(setup.configuration, mmproj_path=path))


def with_adapter(setup: Setup, path: Path | None) -> Setup:
    """Add an adapter; None takes the last one away."""
    now = setup.configuration.lora_paths
    paths = now[:-1] if path is None else (*(kept for kept in now if kept != path), path)
    return with_configuration(setup, replace(setup.configuration, lora_paths=paths))


def _shown_draft(setup: Setup) -> str:
    draft = setup.configuration.draft
    return NONE if draft is None else draft.model_path.stem


def _shown_projector(setup: Setup) -> str:
    path = setup.configuration.mmproj_path
    return NONE if path is None else path.stem


def _shown_adapters(setup: Setup) -> str:
    paths = setup.configuration.lora_paths
    return NONE if not paths else paths[0].stem if len(paths) == 1 else f"{len(paths)} files"


def _read_draft(setup: Setup, text: str) -> Setup:
    return with_draft(setup, _file_or_none(text, _shown_draft(setup), _draft_path(setup)))


def _draft_path(setup: Setup) -> Path | None:
    draft = setup.configuration.draft
    return None if draft is None else draft.model_path


def _read_projector(setup: Setup, text: str) -> Setup:
    now = setup.configuration.mmproj_path
    return with_projector(setup, _file_or_none(text, _shown_projector(setup), now))


def _read_adapters(setup: Setup, text: str) -> Setup:
    if text.strip() == _shown_adapters(setup):
        return setup
    if text.strip().lower() == NONE:
        return with_configuration(setup, replace(setup.configuration, lora_paths=()))
    return with_adapter(setup, parse_file(text))


def _file_or_none(text: str, shown: str, now: Path | None) -> Path | None:
    if text.strip() == shown:
        return now
    return None if text.strip().lower() == NONE else parse_file(text)


def _kvchat_loads_none(setup: Setup, facts: Facts) -> str:
    del facts
    return "kvchat loads no projector" if setup.target == "kvchat" else ""


def _no_projector(setup: Setup, facts: Facts) -> str:
    if setup.configuration.mmproj_path is None:
        return "no projector is chosen"
    return _kvchat_loads_none(setup, facts)


def _no_head(setup: Setup, facts: Facts) -> str:
    if not facts.model.architecture.head_layers:
        return "this model has no head for next tokens"
    return "kvchat does not draft with it" if setup.target == "kvchat" else ""


def _put_head(setup: Setup, n_tokens: int) -> Setup:
    return with_configuration(setup, replace(setup.configuration, n_mtp_draft=n_tokens))


def _shown_head(setup: Setup) -> str:
    return str(setup.configuration.n_mtp_draft or "off")


def _turn_head(setup: Setup, _: Facts, step: int) -> Setup:
    return _put_head(setup, min(max(setup.configuration.n_mtp_draft + step, 0), MAX_DRAFT))


def _read_head(setup: Setup, text: str) -> Setup:
    if text.strip().lower() == "off":
        return _put_head(setup, 0)
    return _put_head(setup, parse_count(text, low=0, high=MAX_DRAFT))


FILE_KNOBS: tuple[Knob, ...] = (
    Knob(
        "mmproj", "projector", "A file for images or sound: right chooses, left takes it off.",
        _shown_projector,
        lambda setup, _, step: with_projector(setup, None) if step < 0 else setup,
        _read_projector, _kvchat_loads_none, chooser="projector",
    ),
    choice(
        "mmproj_offload", "projector on", "Where the projector lies.",
        ("GPU", "CPU"),
        lambda setup: "GPU" if setup.configuration.mmproj_offload else "CPU",
        lambda setup, value: with_configuration(
            setup, replace(setup.configuration, mmproj_offload=value == "GPU")
        ),
        idle=_no_projector,
    ),
    Knob(
        "lora", "LoRA files", "Adapters beside the model: right adds one, left takes one off.",
        _shown_adapters,
        lambda setup, _, step: with_adapter(setup, None) if step < 0 else setup,
        _read_adapters, chooser="adapter",
    ),
    Knob(
        "draft", "draft model", "A small model that guesses ahead: right chooses, left takes it "
        "off.",
        _shown_draft,
        lambda setup, _, step: with_draft(setup, None) if step < 0 else setup,
        _read_draft, chooser="draft",
    ),
    Knob(
        "n_mtp_draft", "own head", "Tokens that the model's own head drafts; 0 is off.",
        _shown_head, _turn_head, _read_head, _no_head,
    ),
)  # fmt: skip


KNOBS: tuple[Knob, ...] = (*CACHE_KNOBS, *PLACEMENT_KNOBS, *MACHINE_KNOBS, *FILE_KNOBS)
