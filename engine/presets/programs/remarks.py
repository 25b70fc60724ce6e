"""What a program does otherwise than a configuration says, as reading back what it gets shows."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, astuple
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from engine.configuration import (
    Configuration,
    ControllerName,
    PredictorName,
    TensorOverride,
)
from engine.model.ggml_types import TYPES_BY_NAME

if TYPE_CHECKING:
    from engine.presets.preset import Preset

Drafter = Literal["head", "lookup", "draft"]
"""What can draft in another program: the model's own head, a look-up, a draft model."""

DRAFTERS: Mapping[PredictorName, tuple[Drafter, ...]] = {
    PredictorName.OFF: (),
    PredictorName.COMBINED: ("lookup", "draft"),
    PredictorName.DRAFT: ("draft",),
    PredictorName.CUSTOM: (),
}
"""What stands for a predictor in other programs, in the order in which it is asked: for all others
their look-up."""
_SAME = {PredictorName.OFF: (), PredictorName.LOOKUP: ("lookup",), PredictorName.DRAFT: ("draft",)}
"""The predictors that other programs have too."""
_TITLES: Mapping[Drafter, str] = {
    "head": "the model's MTP head",
    "lookup": "its n-gram lookup",
    "draft": "the draft model",
}
_FIELDS = (
    "n_ctx", "n_batch", "n_ubatch", "n_slots", "kv_unified", "type_k", "type_v", "flash_attention",
    "swa_full", "offload_kqv", "n_gpu_layers", "split_mode", "main_gpu", "tensor_split",
    "rpc_workers", "tensor_overrides", "n_cpu_moe", "mmproj", "mmproj_offload", "lora",
    "n_mtp_draft", "n_threads", "n_threads_batch", "use_mmap", "use_extra_buffers",
)  # fmt: skip
"""The settings of a preset that another program may have."""
_DRAFT_FIELDS = ("n_gpu_layers", "type_k", "type_v")
_LENGTHS = ("n_draft", "draft_min_tokens", "draft_min_confidence")
IN_REQUESTS = ("json_schema", "grammar", "stop_tokens", "thinking", "thinking_budget")
CONSEQUENCES: Mapping[str, str] = {
    "n_slots": "requests run one after another",
    "rpc_workers": "this machine computes all layers",
    "swa_full": "sliding-window layers cache only their window",
    "n_cpu_moe": "experts are on the device of their layer",
    "tensor_overrides": "every tensor is on the device of its layer",
    "n_mtp_draft": "the model's MTP head is not used",
    "n_threads_batch": "prompts are read with the threads for decoding",
    "use_mmap": "the program decides whether the file is mapped",
    "use_extra_buffers": "weights may be repacked",
}
"""What happens where a program has no setting for a field."""


def differences(
    configuration: Configuration,
    found: "Preset",
    program: str,
    consequences: Mapping[str, str] = CONSEQUENCES,
    skipped: Collection[str] = (),
) -> Iterator[str]:
    """Each setting that a program has not, or gets with another value.

    Args:
        configuration: What is planned.
        found: The preset that was read back from what the program gets.
        program: Its name.
        consequences: What happens where it has no setting for a field.
        skipped: Fields that come to it in another way.
    """
    from engine.presets.library import preset_of  # which reads presets with pydantic

    planned = preset_of(configuration, found.name)
    left = {*skipped, *(() if planned.mmproj else ("mmproj_offload",))}
    for name, value, there, is_set in _compared(planned, found):
        if value == there or name in left:
            continue
        if name in IN_REQUESTS:
            what = "accepts it only in requests, if at all"
        elif is_set:
            what = f"gets {shown(there)}{_growth(value, there)}"
        else:
            after = f", {consequences[name]}" if name in consequences else ""
            what = f"has no setting for it{after}"
        yield f"{name} is {shown(value)}: {program} {what}"


def _compared(planned: "Preset", found: "Preset") -> Iterator[tuple[str, object, object, bool]]:
    """Each setting with its value here and there, and whether the program has one for it."""
    for name in _FIELDS:
        is_set = name in found.model_fields_set
        yield name, getattr(planned, name), getattr(found, name), is_set
    for name, usual in asdict(type(found.sampling)()).items():
        there = getattr(found.sampling, name)
        yield name, getattr(planned.sampling, name), there, there != usual
    if planned.draft is None or found.draft is None:
        return
    for name in _DRAFT_FIELDS:
        is_set = name in found.draft.model_fields_set
        value, there = getattr(planned.draft, name), getattr(found.draft, name)
        yield f"the draft's {name}", value, there, is_set
    for name in _LENGTHS:
        value, there = getattr(planned.speculation, name), getattr(found.speculation, name)
        most = planned.speculation.n_draft if name == "draft_min_tokens" else value
        yield name, min(value, most), there, there != getattr(type(found.speculation)(), name)


def drafters(
    configuration: Configuration, offered: Collection[Drafter] = ("head", "lookup", "draft")
) -> tuple[Drafter, ...]:
    """What drafts in a program that offers these; its head takes the place of a draft model."""
    drafters = DRAFTERS.get(configuration.speculation.predictor, ("lookup",))
    found = [each for each in drafters if each in offered]
    has_head = configuration.n_mtp_draft > 0 and "head" in offered
    if configuration.draft is None or has_head:
        found = [each for each in found if each != "draft"]
    return ("head", *found) if has_head else tuple(found)


def drafting_remarks(
    configuration: Configuration, program: str, drafting: tuple[Drafter, ...], n_draft: int
) -> Iterator[str]:
    """What drafts otherwise than the predictor says, `n_draft` tokens at most."""
    speculation, draft = configuration.speculation, configuration.draft
    beside_head = tuple(each for each in drafting if each != "head")
    if _SAME.get(speculation.predictor) != beside_head:
        instead = " and ".join(_TITLES[each] for each in drafting)
        gets = f"{program} uses {instead} instead"
        none = f"{program} has none and decodes without speculation"
        yield f"the predictor is {speculation.predictor}: {gets if drafting else none}"
    if draft is not None and "draft" not in drafting:
        yield f"the draft model {draft.model_path.name} is left out: {program} does not use it"
    if beside_head and speculation.controller is not ControllerName.FIXED:
        yield (
            f"the controller is {speculation.controller}: {program} drafts up to "
            f"{n_draft} tokens in every round"
        )


def least_type(wanted: str, offered: tuple[str, ...]) -> str:
    """The smallest offered KV type that keeps as many bits as the wanted one."""
    if wanted in offered:
        return wanted
    enough = [name for name in offered if _bits(name) >= _bits(wanted)]
    return min(enough, key=_bits) if enough else max(offered, key=_bits)


def one_type(configuration: Configuration, offered: tuple[str, ...]) -> str:
    """The KV type for a program that has one for keys and values."""
    return least_type(max(configuration.type_k, configuration.type_v, key=_bits), offered)


def _growth(value: object, there: object) -> str:
    """How a KV type changes the cache; nothing for other values."""
    if not {str(value), str(there)} <= set(TYPES_BY_NAME):
        return ""
    before, after = _bits(str(value)), _bits(str(there))
    return "" if before == after else f", {'larger' if after > before else 'smaller'} than planned"


def _bits(name: str) -> float:
    return TYPES_BY_NAME[name].bits


def shown(value: object) -> str:
    """A value of a setting as a remark has it."""
    match value:
        case bool():
            return "on" if value else "off"
        case Path():
            return value.name
        case TensorOverride():
            return "=".join(astuple(value))
        case tuple():
            return ", ".join(map(shown, value)) or "none"
        case float():
            return f"{value:g}"
        case None:
            return "not set"
        case _:
            return str(value) or "none"
