"""The knobs of the planner: one row a knob, in the order of the screen.

A row names a field of `Configuration`, how it is shown, stepped and typed, and when it changes
nothing. What is not one field of its own says so with `get` and `put`.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engine.configuration import (
    DRAFT_N_CTX,
    MAX_BATCH,
    MAX_DRAFT,
    MAX_SLOTS,
    Adapter,
    DraftConfiguration,
    PredictorName,
)
from engine.memory.estimate import with_n_ctx
from engine.memory.kv_cache import KV_TYPES, is_quantized
from engine.memory.terms import TARGETS, Target
from engine.memory.units import format_bytes
from engine.planning.knob import Knob, choice, files, number
from engine.planning.machine import (
    PlannedMachine,
    format_gpus,
    format_ram,
    parse_gpus,
    parse_ram,
    step_gpus,
    step_ram,
)
from engine.planning.planner import Facts, Setup
from engine.planning.values import (
    BATCHES,
    CONTEXTS,
    MARGINS,
    NONE,
    KnobError,
    format_layers,
    parse_layers,
    parse_margin,
    parse_shares,
    step_among,
)

MAX_CONTEXT, MAX_GPU = 16 * 1024**2, 15
SHARE_STEP = 5
"""Percent that a step moves from one GPU to the others."""
NO_GPU = "there is no GPU: everything lies in main memory"
"""Why a knob of GPUs changes nothing; its value is not shown then."""


# --- cache and batches ---


def _with_context(setup: Setup, n_ctx: int) -> Setup:
    """Another context, and that of a draft model with it."""
    return setup.with_configuration(with_n_ctx(setup.configuration, n_ctx))


def _with_v_type(setup: Setup, value: object) -> Setup:
    """Another type of values; packed ones take flash attention along, which they need."""
    flash = setup.configuration.flash_attention
    name = next(name for name in KV_TYPES if name == value)
    needs_flash = flash == "off" and is_quantized(name)
    return setup.changed(type_v=name, flash_attention="auto" if needs_flash else flash)


def with_matched_types(setup: Setup, facts: Facts) -> Setup:
    """The setup with the keys' type for the values where a model keeps both in one tensor."""
    now = setup.configuration
    if not facts.model.architecture.needs_one_type or now.type_k == now.type_v:
        return setup
    return setup.changed(type_v=now.type_k)


def _one_tensor(setup: Setup, facts: Facts) -> str:
    del setup
    is_one = facts.model.architecture.needs_one_type
    return "keys and values are one tensor: K type says both" if is_one else ""


def _no_window(setup: Setup, facts: Facts) -> str:
    del setup
    layers = facts.model.architecture.layers.values()
    has_window = any(layer.window is not None for layer in layers)
    return "" if has_window else "no layer of this model slides"


def _with_batch(setup: Setup, n_batch: int) -> Setup:
    """Another batch; the micro-batch is never larger."""
    return setup.changed(n_batch=n_batch, n_ubatch=min(setup.configuration.n_ubatch, n_batch))


def _with_ubatch(setup: Setup, n_ubatch: int) -> Setup:
    n_batch = setup.configuration.n_batch
    if n_ubatch > n_batch:
        raise KnobError(f"{n_ubatch:,} is more than the batch of {n_batch:,}: raise that first")
    return setup.changed(n_ubatch=n_ubatch)


def _ubatches(setup: Setup, _: Facts) -> Sequence[int]:
    n_batch = setup.configuration.n_batch
    return [n for n in (*BATCHES, n_batch) if n <= n_batch]


# --- placement ---


def _no_gpu(setup: Setup, facts: Facts) -> str:
    del setup
    return "" if facts.gpus else NO_GPU


def _nothing_on_gpu(setup: Setup, facts: Facts) -> str:
    if setup.configuration.n_gpu_layers == 0 and facts.gpus:
        return "no layer is on a GPU"
    return _no_gpu(setup, facts)


def _no_experts(setup: Setup, facts: Facts) -> str:
    if facts.gpus and not facts.model.architecture.is_moe:
        return "this model has no experts"
    return _nothing_on_gpu(setup, facts)


def _one_gpu(setup: Setup, facts: Facts) -> str:
    if len(facts.gpus) == 1:
        return "there is one GPU only"
    return _nothing_on_gpu(setup, facts)


def _uses_every_gpu(setup: Setup, facts: Facts) -> str:
    if setup.configuration.split_mode != "none" and len(facts.gpus) > 1:
        return "split layer uses every GPU"
    return _one_gpu(setup, facts)


def _uses_one_gpu(setup: Setup, facts: Facts) -> str:
    if setup.configuration.split_mode == "none" and len(facts.gpus) > 1:
        return "split none uses one GPU"
    return _one_gpu(setup, facts)


def _step_layers(name: str, setup: Setup, n_all: int, step: int) -> Setup:
    now: int = getattr(setup.configuration, name)
    n_layers = (n_all if now < 0 else min(now, n_all)) + step
    return setup.changed(**{name: -1 if n_layers >= n_all else max(n_layers, 0)})


def _step_gpu_layers(setup: Setup, facts: Facts, step: int) -> Setup:
    return _step_layers("n_gpu_layers", setup, facts.model.architecture.n_layers + 1, step)


def _step_experts(setup: Setup, facts: Facts, step: int) -> Setup:
    return _step_layers("n_cpu_moe", setup, facts.model.architecture.n_layers, step)


def _format_experts(setup: Setup) -> str:
    n_layers = setup.configuration.n_cpu_moe
    return format_layers(n_layers) if n_layers else NONE


def _parse_experts(setup: Setup, text: str) -> Setup:
    return setup.changed(n_cpu_moe=0 if text.strip().lower() == NONE else parse_layers(text))


def _gpu_numbers(_: Setup, facts: Facts) -> Sequence[int]:
    return range(max(len(facts.gpus), 1))


def _percents(setup: Setup, facts: Facts) -> list[int]:
    """The share of each GPU in percent; without a split, that of its free memory."""
    shares: list[float] = list(setup.configuration.tensor_split)
    if len(shares) != len(facts.gpus):
        shares = [float(gpu.free_bytes) for gpu in facts.gpus]
    total = sum(shares) or 1.0
    return [round(100 * share / total) for share in shares]


def _step_split(setup: Setup, facts: Facts, step: int) -> Setup:
    """A share moved between the first GPU and the others."""
    first, *others = _percents(setup, facts) or [100]
    now = SHARE_STEP * round(first / SHARE_STEP)
    wanted = min(max(now + SHARE_STEP * step, SHARE_STEP), 100 - SHARE_STEP)
    if not others or wanted == now:
        return setup
    rest = sum(others) or 1
    shares = [round((100 - wanted) * share / rest) for share in others]
    shares[-1] += 100 - wanted - sum(shares)
    return setup.changed(tensor_split=(float(wanted), *map(float, shares)))


def _format_split(setup: Setup) -> str:
    return ":".join(f"{share:g}" for share in setup.configuration.tensor_split) or "auto"


# --- the program and its machine ---


def _one_slot(setup: Setup, facts: Facts) -> str:
    del facts
    return "one slot shares with nobody" if setup.configuration.n_slots == 1 else ""


def with_machine(setup: Setup, machine: PlannedMachine) -> Setup:
    """The setup for another machine; a split or a main GPU that no longer suits its GPUs goes."""
    now, n_gpus = setup.configuration, machine.n_gpus
    now = replace(now, rpc_workers=tuple(worker.endpoint for worker in machine.workers))
    if n_gpus and len(now.tensor_split) != n_gpus:
        now = replace(now, tensor_split=())
    if n_gpus and now.main_gpu >= n_gpus:
        now = replace(now, main_gpu=0)
    target: Target = "llama-server" if machine.workers else setup.target
    return replace(setup, configuration=now, machine=machine, target=target)


def _with_ram(setup: Setup, ram_bytes: int | None) -> Setup:
    return replace(setup, machine=replace(setup.machine, ram_bytes=ram_bytes))


def _one_memory(setup: Setup, facts: Facts) -> str:
    del facts
    card = setup.machine.unified_card
    return "" if card is None else f"{card} has one memory"


# --- files beside the model ---


def with_draft(setup: Setup, path: Path | None) -> Setup:
    """The setup with a draft model, or with none; the predictor follows."""
    now = setup.configuration
    speculation, draft = now.speculation, None
    if path is not None:
        draft = DraftConfiguration(path, n_ctx=min(now.n_ctx, DRAFT_N_CTX))
        speculation = replace(speculation, predictor=PredictorName.DRAFT)
    elif speculation.predictor is PredictorName.DRAFT:
        speculation = replace(speculation, predictor=PredictorName.SUFFIX)
    return setup.changed(draft=draft, speculation=speculation)


def with_projector(setup: Setup, path: Path | None) -> Setup:
    """The setup with a projector for images or sound, or with none."""
    return setup.changed(mmproj_path=path)


def with_adapter(setup: Setup, path: Path | None) -> Setup:
    """The setup with one more adapter; None takes the last one away."""
    now = setup.configuration.adapters
    if path is None:
        return setup.changed(adapters=now[:-1])
    return setup.changed(adapters=(*(kept for kept in now if kept.path != path), Adapter(path)))


def _draft_files(setup: Setup) -> tuple[Path, ...]:
    draft = setup.configuration.draft
    return () if draft is None else (draft.model_path,)


def _projector_files(setup: Setup) -> tuple[Path, ...]:
    path = setup.configuration.mmproj_path
    return () if path is None else (path,)


def _no_projector(setup: Setup, facts: Facts) -> str:
    if setup.configuration.mmproj_path is None and facts.gpus:
        return "no projector is chosen"
    return _no_gpu(setup, facts)


def _no_head(setup: Setup, facts: Facts) -> str:
    if not facts.model.architecture.head_layers:
        return "this model has no head for next tokens"
    return "kvchat does not draft with it" if setup.target == "kvchat" else ""


KNOBS: tuple[Knob, ...] = (
    number("n_ctx", "context", "Tokens of context, of all slots together. Type 8192 or 8k.",
           (1, MAX_CONTEXT), put=_with_context,
           stops=lambda _, facts: (*CONTEXTS, facts.model.architecture.n_ctx_train)),
    choice("type_k", "K type", "Type of the cached keys: fewer bits, less memory, less exact.",
           tuple(KV_TYPES)),
    choice("type_v", "V type", "Type of the cached values. Packed types need flash attention.",
           tuple(KV_TYPES), put=_with_v_type, disabled_reason=_one_tensor),
    choice("flash_attention", "flash attn", "Attention without the large table of scores.",
           ("auto", "on", "off")),
    choice("swa_full", "SWA cache", "Whether layers with a sliding window keep every token.",
           {"window": False, "full": True}, disabled_reason=_no_window),
    number("n_batch", "batch", "Tokens handed over at a time.",
           (1, MAX_BATCH), stops=lambda _, __: BATCHES, put=_with_batch),
    number("n_ubatch", "ubatch", "Tokens computed at once: the compute buffer grows with them.",
           (1, MAX_BATCH), stops=_ubatches, put=_with_ubatch),
    Knob("n_gpu_layers", "GPU layers", "Layers on the GPU, the output counting as one, or all.",
         lambda setup: format_layers(setup.configuration.n_gpu_layers), _step_gpu_layers,
         lambda setup, text: setup.changed(n_gpu_layers=parse_layers(text)), _no_gpu),
    choice("offload_kqv", "KV cache on", "Where the cache of the layers on the GPU lies.",
           {"GPU": True, "CPU": False}, disabled_reason=_nothing_on_gpu),
    Knob("n_cpu_moe", "CPU experts",
         "First layers whose experts stay in main memory: a number, none or all.",
         _format_experts, _step_experts, _parse_experts, _no_experts),
    choice("split_mode", "split", "Whether the GPUs share the layers, or one takes them all.",
           ("layer", "none"), disabled_reason=_one_gpu),
    Knob("tensor_split", "GPU shares", "Share of each GPU in the layers. Type 3:1 or auto.",
         _format_split, _step_split,
         lambda setup, text: setup.changed(tensor_split=parse_shares(text)), _uses_one_gpu),
    number("main_gpu", "main GPU", "The GPU that takes everything.",
           (0, MAX_GPU), stops=_gpu_numbers, disabled_reason=_uses_every_gpu),
    choice("target", "program", "What is to run it: programs differ in slots and rows of logits.",
           TARGETS, get=lambda setup: setup.target,
           put=lambda setup, target: replace(setup, target=target)),  # type: ignore[arg-type]  # of TARGETS
    number("n_slots", "slots",
           "Chats that kvchat holds, or requests that llama-server answers, side by side.",
           (1, MAX_SLOTS)),
    choice("kv_unified", "unified",
           "Whether the slots share their cells: a common start is held once, and neighbours "
           "change each other's rounding.",
           {"no": False, "yes": True}, disabled_reason=_one_slot),
    Knob("vram", "GPUs", "Those found, or others to plan for: type 8GiB, 2x24GiB, a card's "
         "name, or host1:24GiB for a worker's; d lists cards.",
         lambda setup: format_gpus(setup.machine),
         lambda setup, facts, step: with_machine(
             setup, step_gpus(setup.machine, facts.gpus, step)),
         lambda setup, text: with_machine(setup, parse_gpus(setup.machine, text)),
         chooser="device"),
    Knob("ram", "main memory", "What is free here, or a size to plan for. Type 32GiB or found.",
         lambda setup: format_ram(setup.machine),
         lambda setup, _, step: _with_ram(setup, step_ram(setup.machine, step)),
         lambda setup, text: _with_ram(setup, parse_ram(text)), _one_memory),
    Knob("margin", "keep free", "Memory that stays free on every device. Type 512MiB or 0.",
         lambda setup: format_bytes(setup.margin_bytes),
         lambda setup, _, step: replace(
             setup, margin_bytes=step_among(MARGINS, setup.margin_bytes, step)),
         lambda setup, text: replace(setup, margin_bytes=parse_margin(text))),
    files("mmproj", "projector", "A file for images or sound: right chooses, left takes it off.",
          _projector_files, with_projector, "projector"),
    choice("mmproj_offload", "projector on", "Where the projector lies.",
           {"GPU": True, "CPU": False}, disabled_reason=_no_projector),
    files("lora", "LoRA files", "Adapters beside the model: right adds one, left takes one off.",
          lambda setup: setup.configuration.lora_paths, with_adapter, "adapter"),
    files("draft", "draft model",
          "A small model that guesses ahead: right chooses, left takes it off.",
          _draft_files, with_draft, "draft"),
    number("n_mtp_draft", "own head", "Tokens that the model's own head drafts; 0 is off.",
           (0, MAX_DRAFT), zero="off", disabled_reason=_no_head),
)  # fmt: skip
