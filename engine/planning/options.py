"""The options of the planner screen, in its order: how each is shown, stepped, typed and disabled.

A row names a field of `Configuration`, whose type has the valid values. Options that are not
one field have their own functions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from engine.configuration import (
    DRAFT_N_CTX,
    Adapter,
    Configuration,
    DraftConfiguration,
    PredictorName,
    bounds_of,
)
from engine.memory.estimate import with_n_ctx
from engine.memory.kv_cache import is_quantized
from engine.memory.terms import Target
from engine.memory.units import format_bytes
from engine.planning.machine import (
    PlannedMachine,
    format_gpus,
    format_size,
    parse_gpus,
    step_gpus,
)
from engine.planning.planner import Facts, Setup
from engine.planning.values import (
    BATCHES,
    CONTEXTS,
    FOUND,
    MARGINS,
    NONE,
    RAM_SIZES,
    OptionError,
    parse_count,
    parse_file,
    parse_layers,
    parse_shares,
    parse_size,
    step_among,
    step_round,
)

Chooser = Literal["draft", "projector", "adapter", "device"]
Disabled = tuple[Callable[[Setup, Facts], bool], str]
"""When an option has no effect, and why."""
Stops = Callable[[Setup, Facts], Sequence[int]]


@dataclass(frozen=True, slots=True)
class PlanOption:
    """One row of the planner."""

    name: str
    label: str
    help: str
    format: Callable[[Setup], str]
    step: Callable[[Setup, Facts, int], Setup]
    """The setup after a step up or down; the same setup at an end."""
    parse: Callable[[Setup, str], Setup]
    """The setup with a typed value; raises `OptionError`."""
    disabled: tuple[Disabled, ...] = ()
    chooser: Chooser | None = None
    """The list of values that the key for the next value opens."""

    def disabled_reason(self, setup: Setup, facts: Facts) -> str:
        """Why the option has no effect in this setup; empty if it has one."""
        reasons = (text for is_disabled, text in self.disabled if is_disabled(setup, facts))
        return next(reasons, "")


def _value_of(setup: Setup, name: str) -> Any:
    return getattr(setup if hasattr(setup, name) else setup.configuration, name)


def with_value(setup: Setup, name: str, value: object) -> Setup:
    """The setup with another value of a field and the fields that depend on it.

    The context of a draft model follows, a ubatch is at most the batch (else `OptionError`), and
    quantised values need flash attention.
    """
    now = setup.configuration
    if name == "target":
        return replace(setup, target=value)  # type: ignore[arg-type]  # of TARGETS
    changed = setup.with_values(**{name: value})
    match name, value:
        case "n_ctx", int():
            return setup.with_configuration(with_n_ctx(now, value))
        case "n_batch", int():
            return changed.with_values(n_ubatch=min(now.n_ubatch, value))
        case "n_ubatch", int() if value > now.n_batch:
            raise OptionError(
                f"{value:,} exceeds the batch size of {now.n_batch:,}: raise the batch size first"
            )
        case "type_v", _ if now.flash_attention == "off":
            needs_flash = is_quantized(changed.configuration.type_v)
            return changed.with_values(flash_attention="auto") if needs_flash else changed
        case _:
            return changed


def choice(
    name: str,
    label: str,
    text: str,
    words: Sequence[str] = (),
    *,
    disabled: tuple[Disabled, ...] = (),
) -> PlanOption:
    """An option with a fixed set of values: those of the field's type, or two words for a bool."""
    hint = get_type_hints(Setup if name == "target" else Configuration)[name]
    values: Mapping[str, object] = {word: word for word in get_args(hint)}
    if hint is bool:
        values = dict(zip(words, (False, True), strict=True))

    def shown(setup: Setup) -> str:
        return next(word for word, value in values.items() if value == _value_of(setup, name))

    def parse(setup: Setup, typed: str) -> Setup:
        for word, value in values.items():
            if word.lower() == typed.strip().lower():
                return with_value(setup, name, value)
        raise OptionError(f"{typed!r} is not one of {', '.join(values)}")

    def step(setup: Setup, _: Facts, by: int) -> Setup:
        return with_value(setup, name, values[step_round(tuple(values), shown(setup), by)])

    return PlanOption(name, label, text, shown, step, parse, disabled)


def number(
    name: str,
    label: str,
    text: str,
    *,
    stops: Stops | None = None,
    bounds: tuple[int, int] | None = None,
    n_layers: Callable[[Facts], int] | None = None,
    zero: str = "0",
    disabled: tuple[Disabled, ...] = (),
) -> PlanOption:
    """An option with an integer value, stepped by one or through `stops`; `zero` is the text of 0.

    `n_layers` gives all layers if the value is a number of layers, for which `all` is -1.
    """
    limits = {} if bounds or n_layers else bounds_of(Configuration)[name].limits
    low, high = bounds or (int(limits.get("ge", 0)), int(limits.get("le", 0)))

    def parse(setup: Setup, typed: str) -> Setup:
        if low == 0 and typed.strip().lower() == zero:
            return with_value(setup, name, 0)
        found = parse_layers(typed) if n_layers else parse_count(typed, low=low, high=high)
        return with_value(setup, name, found)

    def step(setup: Setup, facts: Facts, by: int) -> Setup:
        now = int(_value_of(setup, name))
        if n_layers:
            limit = n_layers(facts)
            found = (limit if now < 0 else min(now, limit)) + by
            return with_value(setup, name, -1 if found >= limit else max(found, 0))
        next_one = min(max(now + by, low), high)
        found = next_one if stops is None else step_among(stops(setup, facts), now, by)
        return with_value(setup, name, found)

    def shown(setup: Setup) -> str:
        now = int(_value_of(setup, name))
        return "all" if now < 0 else f"{now:,}" if now else zero

    return PlanOption(name, label, text, shown, step, parse, disabled)


def files(
    name: str,
    label: str,
    text: str,
    chooser: Chooser,
    get: Callable[[Configuration], Iterable[Path | None]],
    put: Callable[[Setup, Path | None], Setup],
) -> PlanOption:
    """An option with files: a step up opens a list, a step down removes the last file."""

    def shown(setup: Setup) -> str:
        paths = list(filter(None, get(setup.configuration)))
        return NONE if not paths else paths[0].stem if len(paths) == 1 else f"{len(paths)} files"

    def parse(setup: Setup, typed: str) -> Setup:
        if typed.strip() == shown(setup):
            return setup
        if typed.strip().lower() != NONE:
            return put(setup, parse_file(typed))
        while any(get(setup.configuration)):
            setup = put(setup, None)
        return setup

    def step(setup: Setup, _: Facts, by: int) -> Setup:
        return put(setup, None) if by < 0 else setup

    return PlanOption(name, label, text, shown, step, parse, chooser=chooser)


MAX_CONTEXT, MAX_GPU = 16 * 1024**2, 15
SHARE_STEP = 5
"""Percent of the layers that a step moves between the first GPU and the others."""
NO_GPU = "there is no GPU: everything is in RAM"
"""Why a GPU option has no effect; its value is not shown then."""

_WITHOUT_GPU: Disabled = (lambda _, facts: not facts.gpus, NO_GPU)
_NOTHING_ON_GPU: tuple[Disabled, ...] = (
    _WITHOUT_GPU,
    (lambda setup, _: setup.configuration.n_gpu_layers == 0, "no layer is on a GPU"),
)
_ONE_GPU: tuple[Disabled, ...] = (
    (lambda _, facts: len(facts.gpus) == 1, "there is only one GPU"),
    *_NOTHING_ON_GPU,
)


def with_matched_types(setup: Setup, facts: Facts) -> Setup:
    """The setup with V in the type of K if the model stores both in one tensor."""
    now = setup.configuration
    if not facts.model.architecture.needs_one_type or now.type_k == now.type_v:
        return setup
    return setup.with_values(type_v=now.type_k)


# --- shares, the program and its machine ---


def _step_split(setup: Setup, facts: Facts, step: int) -> Setup:
    """The setup with layers moved between the first GPU and the others; at first by free memory."""
    split: tuple[float, ...] = setup.configuration.tensor_split
    if len(split) != len(facts.gpus):
        split = tuple(gpu.free_bytes for gpu in facts.gpus)
    first, *others = [round(100 * share / (sum(split) or 1)) for share in split] or [100]
    now = SHARE_STEP * round(first / SHARE_STEP)
    wanted = min(max(now + SHARE_STEP * step, SHARE_STEP), 100 - SHARE_STEP)
    if not others or wanted == now:
        return setup
    rest = sum(others) or 1
    shares = [round((100 - wanted) * share / rest) for share in others]
    shares[-1] += 100 - wanted - sum(shares)
    return setup.with_values(tensor_split=(float(wanted), *map(float, shares)))


def with_machine(setup: Setup, machine: PlannedMachine) -> Setup:
    """The setup for another machine; a split or main GPU that it does not have is reset."""
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
    """The setup with a draft model or None, and the predictor that suits."""
    now = setup.configuration
    speculation, draft = now.speculation, None
    if path is not None:
        draft = DraftConfiguration(path, n_ctx=min(now.n_ctx, DRAFT_N_CTX))
        speculation = replace(speculation, predictor=PredictorName.DRAFT)
    elif speculation.predictor is PredictorName.DRAFT:
        speculation = replace(speculation, predictor=PredictorName.SUFFIX)
    return setup.with_values(draft=draft, speculation=speculation)


def with_projector(setup: Setup, path: Path | None) -> Setup:
    """The setup with a projector for images or sound; None removes it."""
    return setup.with_values(mmproj_path=path)


def with_adapter(setup: Setup, path: Path | None) -> Setup:
    """The setup with one more adapter; None removes the last one."""
    now = setup.configuration.adapters
    if path is None:
        return setup.with_values(adapters=now[:-1])
    return setup.with_values(adapters=(*(each for each in now if each.path != path), Adapter(path)))


def _with_margin(setup: Setup, text: str) -> Setup:
    is_zero = text.strip().rstrip("BbGgMmKki ") == "0"
    nbytes = 0 if is_zero else parse_size(text, "0 leaves nothing free")
    return replace(setup, margin_bytes=nbytes)


OPTIONS: tuple[PlanOption, ...] = (
    number("n_ctx", "context", "Tokens of context for all slots together. Type 8192 or 8k.",
           stops=lambda _, facts: (*CONTEXTS, facts.model.architecture.n_ctx_train),
           bounds=(1, MAX_CONTEXT)),
    choice("type_k", "K type", "Type of the cached keys: fewer bits need less memory and are less "
           "precise."),
    choice("type_v", "V type", "Type of the cached values. Quantised types need flash attention.",
           disabled=((lambda _, facts: facts.model.architecture.needs_one_type,
                  "this model stores keys and values together: K type sets both"),)),
    choice("flash_attention", "flash attn", "Attention that does not store the score matrix."),
    choice("swa_full", "SWA cache", "Whether sliding-window layers cache every token.",
           ("window", "full"),
           disabled=((lambda _, facts: all(
               layer.window is None for layer in facts.model.architecture.layers.values()),
                  "this model has no sliding-window layer"),)),
    number("n_batch", "batch", "Maximum tokens in one llama_decode call (logical batch).",
           stops=lambda _, __: BATCHES),
    number("n_ubatch", "ubatch", "Tokens computed at once (physical batch): more tokens need a "
           "larger compute buffer.",
           stops=lambda setup, _: [n for n in (*BATCHES, setup.configuration.n_batch)
                                   if n <= setup.configuration.n_batch]),
    number("n_gpu_layers", "GPU layers", "Layers on the GPU, including the output layer: a "
           "number or all.",
           n_layers=lambda facts: facts.model.architecture.n_layers + 1, disabled=(_WITHOUT_GPU,)),
    choice("offload_kqv", "KV cache on", "Where the KV cache of the GPU layers is stored.",
           ("CPU", "GPU"), disabled=_NOTHING_ON_GPU),
    number("n_cpu_moe", "CPU experts",
           "How many leading layers keep their experts in RAM: a number, none or all.",
           n_layers=lambda facts: facts.model.architecture.n_layers, zero="none",
           disabled=(_WITHOUT_GPU, (lambda _, facts: not facts.model.architecture.is_moe,
                                "this model has no experts"), *_NOTHING_ON_GPU)),
    choice("split_mode", "split", "Split layers over all GPUs, or put all layers on the main GPU.",
           disabled=_ONE_GPU),
    PlanOption("tensor_split", "GPU shares", "Share of the layers on each GPU. Type 3:1 or auto.",
         lambda setup: ":".join(f"{n:g}" for n in setup.configuration.tensor_split) or "auto",
         _step_split,
         lambda setup, text: setup.with_values(tensor_split=parse_shares(text)),
         ((lambda setup, facts: setup.configuration.split_mode == "none" and len(facts.gpus) > 1,
           "split is none, so only one GPU is used"), *_ONE_GPU)),
    number("main_gpu", "main GPU", "GPU that holds all layers.",
           stops=lambda _, facts: range(max(len(facts.gpus), 1)), bounds=(0, MAX_GPU),
           disabled=((lambda setup, facts: len(facts.gpus) > 1
                  and setup.configuration.split_mode != "none",
                  "split is layer, so every GPU is used"), *_ONE_GPU)),
    choice("target", "program", "Program that runs the model: kvchat or llama-server."),
    number("n_slots", "slots", "Parallel chats in kvchat, or parallel requests in llama-server."),
    choice("kv_unified", "unified",
           "Whether the slots share one KV cache: a common prefix is stored once, but replies "
           "that run together are rounded differently.", ("no", "yes"),
           disabled=((lambda setup, _: setup.configuration.n_slots == 1,
                  "there is only one slot"),)),
    PlanOption("vram", "GPUs", "GPUs of this machine, or others to plan for: type 8GiB, 2x24GiB, a "
         "card's name, or host1:24GiB for a worker; d lists cards.",
         lambda setup: format_gpus(setup.machine),
         lambda setup, facts, step: with_machine(
             setup, step_gpus(setup.machine, facts.gpus, step)),
         lambda setup, text: with_machine(setup, parse_gpus(setup.machine, text)),
         chooser="device"),
    PlanOption("ram", "RAM",
         "RAM to plan for: a size such as 32GiB, or the word `found` for the free RAM.",
         lambda setup: format_size(setup.machine.ram_bytes) if setup.machine.ram_bytes else FOUND,
         lambda setup, _, step: _with_ram(
             setup, step_among((0, *RAM_SIZES), setup.machine.ram_bytes or 0, step) or None),
         lambda setup, text: _with_ram(setup, None if text.strip().lower() == FOUND else
             parse_size(text, "or type `found` for the free RAM of this machine")),
         ((lambda setup, _: setup.machine.unified_card is not None,
           "the chosen card has unified memory, which also sets the RAM"),)),
    PlanOption("margin", "keep free", "Memory to leave free on every device. Type 512MiB or 0.",
         lambda setup: format_bytes(setup.margin_bytes),
         lambda setup, _, step: replace(
             setup, margin_bytes=step_among(MARGINS, setup.margin_bytes, step)),
         _with_margin),
    files("mmproj", "projector", "Projector file for images or audio: → chooses one, ← removes it.",
          "projector", lambda now: (now.mmproj_path,), with_projector),
    choice("mmproj_offload", "projector on", "Where the projector is loaded.", ("CPU", "GPU"),
           disabled=(_WITHOUT_GPU, (lambda setup, _: setup.configuration.mmproj_path is None,
                                "choose a projector first"))),
    files("lora", "LoRA files", "LoRA adapters of the model: → adds one, ← removes one.",
          "adapter", lambda now: now.lora_paths, with_adapter),
    files("draft", "draft model", "Small model that drafts tokens: → chooses one, ← removes it.",
          "draft", lambda now: (now.draft.model_path if now.draft else None,), with_draft),
    number("n_mtp_draft", "MTP draft", "Draft length of the model's MTP head; 0: off.",
           zero="off",
           disabled=((lambda _, facts: not facts.model.architecture.head_layers,
                  "this model has no MTP head"),
                 (lambda setup, _: setup.target == "kvchat",
                  "kvchat does not draft with MTP heads"))),
)  # fmt: skip
