"""The knobs of the planner: one row a knob, in the order of the screen.

A row names a field of `Configuration`, whose type says what it may be, and when it changes nothing.
What is not one field says how it is shown, stepped and typed.
"""

from dataclasses import replace
from pathlib import Path

from engine.configuration import DRAFT_N_CTX, Adapter, DraftConfiguration, PredictorName
from engine.memory.terms import Target
from engine.memory.units import format_bytes
from engine.planning.knob import Idle, Knob, choice, files, layers, number
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
    parse_margin,
    parse_shares,
    step_among,
)

MAX_CONTEXT, MAX_GPU = 16 * 1024**2, 15
SHARE_STEP = 5
"""Percent that a step moves from one GPU to the others."""
NO_GPU = "there is no GPU: everything is in RAM"
"""Why a knob of GPUs changes nothing; its value is not shown then."""

_WITHOUT_GPU: Idle = (lambda _, facts: not facts.gpus, NO_GPU)
_NOTHING_ON_GPU: tuple[Idle, ...] = (
    _WITHOUT_GPU,
    (lambda setup, _: setup.configuration.n_gpu_layers == 0, "no layer is on a GPU"),
)
_ONE_GPU: tuple[Idle, ...] = (
    (lambda _, facts: len(facts.gpus) == 1, "there is only one GPU"),
    *_NOTHING_ON_GPU,
)


def _splits(setup: Setup, facts: Facts) -> bool:
    return setup.configuration.split_mode != "none" and len(facts.gpus) > 1


def _takes_one(setup: Setup, facts: Facts) -> bool:
    return setup.configuration.split_mode == "none" and len(facts.gpus) > 1


def _needs_one_type(_: Setup, facts: Facts) -> bool:
    return facts.model.architecture.needs_one_type


def _has_no_window(_: Setup, facts: Facts) -> bool:
    return all(layer.window is None for layer in facts.model.architecture.layers.values())


def with_matched_types(setup: Setup, facts: Facts) -> Setup:
    """The setup with the keys' type for the values where a model keeps both in one tensor."""
    now = setup.configuration
    if not facts.model.architecture.needs_one_type or now.type_k == now.type_v:
        return setup
    return setup.with_values(type_v=now.type_k)


# --- shares, the program and its machine ---


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
    return setup.with_values(tensor_split=(float(wanted), *map(float, shares)))


def _format_split(setup: Setup) -> str:
    return ":".join(f"{share:g}" for share in setup.configuration.tensor_split) or "auto"


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
    return setup.with_values(draft=draft, speculation=speculation)


def with_projector(setup: Setup, path: Path | None) -> Setup:
    """The setup with a projector for images or sound, or with none."""
    return setup.with_values(mmproj_path=path)


def with_adapter(setup: Setup, path: Path | None) -> Setup:
    """The setup with one more adapter; None takes the last one away."""
    now = setup.configuration.adapters
    if path is None:
        return setup.with_values(adapters=now[:-1])
    return setup.with_values(adapters=(*(kept for kept in now if kept.path != path), Adapter(path)))


def _draft_files(setup: Setup) -> tuple[Path, ...]:
    draft = setup.configuration.draft
    return () if draft is None else (draft.model_path,)


def _projector_files(setup: Setup) -> tuple[Path, ...]:
    path = setup.configuration.mmproj_path
    return () if path is None else (path,)


KNOBS: tuple[Knob, ...] = (
    number("n_ctx", "context", "Tokens of context, of all slots together. Type 8192 or 8k.",
           stops=lambda _, facts: (*CONTEXTS, facts.model.architecture.n_ctx_train),
           bounds=(1, MAX_CONTEXT)),
    choice("type_k", "K type", "Type of the cached keys: fewer bits need less memory and are less "
           "precise."),
    choice("type_v", "V type", "Type of the cached values. Quantised types need flash attention.",
           idle=((_needs_one_type, "this model stores keys and values together: K type sets "
                                   "both"),)),
    choice("flash_attention", "flash attn", "Attention that does not store the score matrix."),
    choice("swa_full", "SWA cache", "Whether sliding-window layers cache every token.",
           ("window", "full"), idle=((_has_no_window, "this model has no sliding-window layer"),)),
    number("n_batch", "batch", "Maximum tokens in one call (logical "
           "batch).", stops=lambda _, __: BATCHES),
    number("n_ubatch", "ubatch", "Tokens computed at once (physical batch): more need a larger "
           "compute buffer.",
           stops=lambda setup, _: [n for n in (*BATCHES, setup.configuration.n_batch)
                                   if n <= setup.configuration.n_batch]),
    layers("n_gpu_layers", "GPU layers", "Layers on the GPU, the output layer included: a number "
           "or all.",
           lambda facts: facts.model.architecture.n_layers + 1, idle=(_WITHOUT_GPU,)),
    choice("offload_kqv", "KV cache on", "Where the KV cache of the GPU layers is stored.",
           ("CPU", "GPU"), idle=_NOTHING_ON_GPU),
    layers("n_cpu_moe", "CPU experts",
           "How many leading layers keep their experts in RAM: a number, none or all.",
           lambda facts: facts.model.architecture.n_layers, zero="none",
           idle=(_WITHOUT_GPU, (lambda _, facts: not facts.model.architecture.is_moe,
                                "this model has no experts"), *_NOTHING_ON_GPU)),
    choice("split_mode", "split", "Split the layers over all GPUs, or put all on the main GPU.",
           idle=_ONE_GPU),
    Knob("tensor_split", "GPU shares", "Share of the layers on each GPU. Type 3:1 or auto.",
         _format_split, _step_split,
         lambda setup, text: setup.with_values(tensor_split=parse_shares(text)),
         ((_takes_one, "with split none, one GPU is used"), *_ONE_GPU)),
    number("main_gpu", "main GPU", "GPU that holds all layers.",
           stops=lambda _, facts: range(max(len(facts.gpus), 1)), bounds=(0, MAX_GPU),
           idle=((_splits, "with split layer, every GPU is used"), *_ONE_GPU)),
    choice("target", "program",
           "Program that runs the model; slots and logits buffers differ."),
    number("n_slots", "slots",
           "Parallel chats of kvchat, or parallel requests of llama-server."),
    choice("kv_unified", "unified",
           "Whether the slots share one KV cache: a common prefix is stored once, but "
           "slots affect each other's rounding.", ("no", "yes"),
           idle=((lambda setup, _: setup.configuration.n_slots == 1,
                  "there is only one slot"),)),
    Knob("vram", "GPUs", "GPUs of this machine, or others to plan for: type 8GiB, 2x24GiB, a "
         "card's "
         "name, or host1:24GiB for a worker; d lists cards.",
         lambda setup: format_gpus(setup.machine),
         lambda setup, facts, step: with_machine(
             setup, step_gpus(setup.machine, facts.gpus, step)),
         lambda setup, text: with_machine(setup, parse_gpus(setup.machine, text)),
         chooser="device"),
    Knob("ram", "RAM", "Free RAM of this machine, or a size to plan for. Type 32GiB or found.",
         lambda setup: format_ram(setup.machine),
         lambda setup, _, step: _with_ram(setup, step_ram(setup.machine, step)),
         lambda setup, text: _with_ram(setup, parse_ram(text)),
         ((lambda setup, _: setup.machine.unified_card is not None,
           "this machine has unified memory: its size is set by the card"),)),
    Knob("margin", "keep free", "Memory to leave free on every device. Type 512MiB or 0.",
         lambda setup: format_bytes(setup.margin_bytes),
         lambda setup, _, step: replace(
             setup, margin_bytes=step_among(MARGINS, setup.margin_bytes, step)),
         lambda setup, text: replace(setup, margin_bytes=parse_margin(text))),
    files("mmproj", "projector", "Projector file for images or sound: → chooses one, ← removes it.",
          "projector", _projector_files, with_projector),
    choice("mmproj_offload", "projector on", "Where the projector is loaded.", ("CPU", "GPU"),
           idle=(_WITHOUT_GPU, (lambda setup, _: setup.configuration.mmproj_path is None,
                                "choose a projector first"))),
    files("lora", "LoRA files", "LoRA adapters of the model: → adds one, ← removes one.",
          "adapter", lambda setup: setup.configuration.lora_paths, with_adapter),
    files("draft", "draft model",
          "Small model that drafts tokens: → chooses one, ← removes it.",
          "draft", _draft_files, with_draft),
    number("n_mtp_draft", "MTP draft", "Draft length of the model's MTP head; 0 is off.",
           zero="off",
           idle=((lambda _, facts: not facts.model.architecture.head_layers,
                  "this model has no MTP head"),
                 (lambda setup, _: setup.target == "kvchat",
                  "kvchat does not draft with MTP heads"))),
)  # fmt: skip
