"""Settings of a planner, checked by the rules of presets before anything is changed."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from pydantic import ValidationError

from engine.configuration import FlashAttention, KVTypeName
from engine.errors import PresetError
from engine.memory.search import Offload
from engine.presets.preset import Preset


class Values(TypedDict, total=False):
    """The fields of `Configuration` that a planner changes."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    type_k: KVTypeName
    type_v: KVTypeName
    flash_attention: FlashAttention
    n_slots: int
    kv_unified: bool
    swa_full: bool
    offload_kqv: bool
    n_gpu_layers: int
    n_cpu_moe: int
    n_threads: int | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What shall change."""

    values: Values = field(default_factory=Values)
    offload: Offload | None = None

    @property
    def sets_layers(self) -> bool:
        """Whether layers are set by their number."""
        return bool({"n_gpu_layers", "n_cpu_moe"} & set(self.values))


def checked_changes(settings: Mapping[str, object]) -> Changes:
    """Give settings as fields of a configuration; `all` stands for every layer.

    Raises:
        PresetError: a name is not known or a value impossible; every fault is named.
    """
    faults = [fault for name in settings if (fault := _unknown(name)) is not None]
    offload = _offload(settings, faults)
    plain = {name: value for name, value in settings.items() if name in Values.__annotations__}
    rules = _validated(plain, faults)
    if faults or rules is None:
        raise PresetError("; ".join(faults))
    values = Values()
    for name in plain:
        value = getattr(rules, name)
        values[name] = -1 if value == "all" else value  # type: ignore[literal-required]  # a key
    return Changes(values, offload)


def _unknown(name: str) -> str | None:
    known = [*Values.__annotations__, "offload"]
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{name} is no setting: {hint}"


def _offload(settings: Mapping[str, object], faults: list[str]) -> Offload | None:
    if "offload" not in settings:
        return None
    name = str(settings["offload"])
    if name not in set(Offload):
        faults.append(f"offload is {name!r}: it is one of {', '.join(Offload)}")
        return None
    return Offload(name)


def _validated(values: Mapping[str, object], faults: list[str]) -> Preset | None:
    layers = {"n_gpu_layers", "n_cpu_moe"}
    plain = {k: "all" if k in layers and v == -1 else v for k, v in values.items()}
    try:
        return Preset.model_validate({"name": "planner", **plain})
    except ValidationError as error:
        faults += (
            f"{item['loc'][0]} is {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"
            for item in error.errors(include_url=False)
        )
        return None
