"""Presets: rules that a person writes in TOML, strictly read."""

import difflib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.configuration import (
    MAX_DRAFT,
    MOST_COUNT,
    ControllerName,
    FlashAttention,
    KVTypeName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
    SplitMode,
    TensorOverride,
    Verification,
)
from engine.errors import PresetError, shown
from engine.files import SETTINGS_BYTES, read_text
from engine.memory.units import GIB, MOST_BYTES
from engine.parsing import parse_toml

MOST_GIB = MOST_BYTES / GIB
MOST_DEVICES = 128
MOST_FAULTS = 50
"""Faults that a message names."""

Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Gib = Annotated[float, Field(ge=0, le=MOST_GIB)]
Share = Annotated[float, Field(ge=0, le=MOST_COUNT)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DraftRules(_Strict):
    """The draft model."""

    model: str
    """Path or name of the draft model."""
    n_gpu_layers: Count | Literal["all"] = "all"
    """Layers of the draft on the GPU."""
    type_k: KVTypeName = "f16"
    type_v: KVTypeName = "f16"


class TensorOverrideRule(_Strict):
    """Tensors that go to a device of their own."""

    pattern: str = Field(pattern=r"^[^,=]+$")
    """Regular expression that is searched in the tensor's name; llama.cpp cuts at `,` and `=`."""
    device: str = Field(default="CPU", min_length=1)
    """`CPU`, or a GPU by its number, as in `GPU 0`."""

    def override(self) -> TensorOverride:
        """Give this rule as a configuration takes it."""
        return TensorOverride(self.pattern, self.device)


class SpeculationRules(_Strict):
    """Who drafts, and how many tokens a round."""

    predictor: PredictorName = PredictorName.SUFFIX
    """`off`, `lookup`, `suffix`, `combined`, `draft` or `custom`."""
    custom_predictor: str = ""
    """Name of the plugin's predictor that `custom` is."""
    controller: ControllerName = ControllerName.AUTO
    """`fixed`, `band` or `auto`."""
    n_draft: int = Field(default=3, ge=1, le=MAX_DRAFT)
    """Tokens drafted a round; where the band starts."""
    n_draft_max: int = Field(default=8, ge=1, le=MAX_DRAFT)
    """Longest draft that the band may reach."""
    lookup_pattern_min: int = Field(default=5, ge=1, le=64)
    """Shortest run of tokens that the look-up trusts."""
    lookup_pattern_max: int = Field(default=16, ge=1, le=64)
    """Longest run of tokens that the look-up compares."""
    lookup_length_min: int = Field(default=1, ge=1, le=MAX_DRAFT)
    """Tokens that must stand behind an earlier place for the look-up to copy them."""
    lookup_length_max: int = Field(default=MAX_DRAFT, ge=1, le=MAX_DRAFT)
    """Most tokens that the look-up copies."""
    suffix_min_confidence: float = Field(default=0.7, ge=0.0, le=1.0)
    """Probability of being right as a whole under which a suffix draft ends."""
    draft_min_tokens: int = Field(default=0, ge=0, le=MAX_DRAFT)
    """Tokens a draft model proposes whatever its confidence."""
    draft_min_confidence: float = Field(default=0.6, ge=0.0, le=1.0)
    """Probability under which a draft model stops drafting."""
    verification: Verification = "coupled"
    """`coupled`, `match`, `rejection` or `block`; the last two keep the law, not a seed's text."""
    bonus_token: bool = True
    """Whether the target adds a token of its own behind a draft that was accepted whole."""
    strict: bool = False
    """Whether drafts keep to batches that round as plain decoding does; for `coupled`, `match`."""

    def settings(self) -> SpeculationSettings:
        """Give these rules as a session takes them."""
        return SpeculationSettings(**self.model_dump())


class SamplingRules(_Strict):
    """How replies are drawn."""

    repetition_penalty: float = Field(default=1.0, gt=0.0, le=10.0)
    repetition_window: Count = 64
    temperature: float = Field(default=0.7, ge=0.0, le=10.0)
    """0 is greedy."""
    top_k: Count = 40
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    min_p: float = Field(default=0.05, ge=0.0, lt=1.0)

    def settings(self) -> SamplingSettings:
        """Give these rules as a sampler takes them."""
        return SamplingSettings(**self.model_dump())


class Preset(_Strict):
    """Rules for a configuration; they become numbers with a model and a machine (`resolve`)."""

    name: str = Field(min_length=1, max_length=60, pattern=r"^[\w][\w .+-]*$")
    """Shown in lists; letters, digits, spaces and `.+-_`."""
    description: str = ""
    model: str | None = None
    """Path or name of the model; left out, the preset suits any."""
    goal: Literal["context", "quality", "speed", "balanced"] | None = None
    """What shall be best; a search then settles context, cache types and layers not given here."""
    n_ctx: Annotated[int, Field(ge=1, le=MOST_COUNT)] | Literal["auto", "max"] = "auto"
    """Tokens of context; `auto` is at most 8192, `max` all that fits; neither exceeds training."""
    type_k: KVTypeName = "f16"
    """Type of the cached keys."""
    type_v: KVTypeName = "f16"
    """Type of the cached values."""
    flash_attention: FlashAttention = "auto"
    n_batch: int = Field(default=2048, ge=1, le=65536)
    n_ubatch: int = Field(default=512, ge=1, le=65536)
    n_gpu_layers: Count | Literal["auto", "all"] = "auto"
    """Layers on the GPU, the output counting as one; `auto` is as many as fit."""
    n_slots: int = Field(default=1, ge=1, le=256)
    """Requests that llama-server answers, or chats that kvchat's context holds, side by side."""
    kv_unified: bool = False
    """Whether the slots share their cells."""
    swa_full: bool = False
    """Whether sliding-window layers keep every token."""
    offload_kqv: bool = True
    """Whether the cache of a layer lies on the layer's GPU; else it stays in main memory."""
    split_mode: SplitMode = "layer"
    """`layer` shares the layers among several GPUs, `none` gives all to `main_gpu`."""
    main_gpu: Count = 0
    tensor_split: tuple[Share, ...] = Field(default=(), max_length=MOST_DEVICES)
    """Share of each GPU in the layers, in any unit; empty shares by free memory."""
    n_cpu_moe: Count | Literal["all"] = 0
    """First layers whose experts stay in main memory."""
    tensor_overrides: tuple[TensorOverrideRule, ...] = ()
    """Tensors with a device of their own; the first match wins."""
    mmproj: str | None = None
    """Path of a projector for images or sound, which llama-server loads beside the model."""
    mmproj_offload: bool = True
    """Whether the projector lies on the first GPU."""
    lora: tuple[str, ...] = ()
    """Paths of adapters that are loaded beside the model, at scale 1."""
    n_mtp_draft: int = Field(default=0, ge=0, le=MAX_DRAFT)
    """Tokens that the model's own next-token head drafts under llama-server; 0 is off."""
    use_extra_buffers: bool = True
    """Whether weights in main memory may be repacked for the processor."""
    n_threads: int | None = Field(default=None, ge=1, le=1024)
    vram_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Memory of the GPU to plan for, instead of the one that is there."""
    ram_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Main memory that a goal plans for, instead of what is free."""
    margin_gib: Gib = 0.5
    """Memory that is kept free on every device."""
    system_prompt: str = ""
    draft: DraftRules | None = None
    speculation: SpeculationRules = SpeculationRules()
    sampling: SamplingRules = SamplingRules()


def read_preset(path: Path) -> Preset:
    """Read a preset file.

    Raises:
        PresetError: it cannot be read or is not valid; every bad key and value is named.
    """
    try:
        return parse_preset(read_text(path, limit=SETTINGS_BYTES), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise PresetError(f"{path} cannot be read: {error}") from error


def parse_preset(text: str, source: str) -> Preset:
    """Read a preset from TOML; `source` names it in messages.

    Raises:
        PresetError: it is not valid; every bad key and value is named.
    """
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise PresetError(f"{source} is not valid TOML: {error}") from error
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        raise PresetError(_all_faults(error, source)) from error


def _all_faults(error: ValidationError, source: str) -> str:
    faults = [_fault(tuple(map(str, item["loc"])), item["type"], item["msg"], item["input"])
              for item in error.errors(include_url=False)[:MOST_FAULTS]]  # fmt: skip
    lines = list({fault.split(" is ")[0]: fault for fault in reversed(faults)}.values())[::-1]
    n_more = error.error_count() - len(faults)
    count = f"{len(lines)} faults" if len(lines) > 1 else "one fault"
    more = [f"and {n_more:,} more"] if n_more else []
    return f"{source} has {count}:\n" + "\n".join(f"  {line}" for line in lines + more)


def _fault(where: tuple[str, ...], kind: str, message: str, value: object) -> str:
    known = _known_path(where)
    key = ".".join(known)
    match kind:
        case "extra_forbidden":
            near = difflib.get_close_matches(where[-1], _names_at(where[:-1]), n=1, cutoff=0.5)
            hint = f": did you mean {near[0]}?" if near else ""
            return f"{key} is no key{hint}"
        case "missing":
            return f"{key} is missing"
        case _:
            return f"{key} is {shown(value)}: {message[:1].lower()}{message[1:]}"


def _known_path(where: tuple[str, ...]) -> tuple[str, ...]:
    """Drop the names of union members, which pydantic appends to a location."""
    kept: list[str] = []
    names = _names_at(())
    for part in where:
        if kept and kept[-1] not in ("draft", "speculation", "sampling") and part not in names:
            break
        kept.append(part)
    return tuple(kept)


def _names_at(where: tuple[str, ...]) -> list[str]:
    models: dict[str, type[BaseModel]] = {
        "draft": DraftRules,
        "speculation": SpeculationRules,
        "sampling": SamplingRules,
    }
    model = models.get(where[0], Preset) if where else Preset
    return list(model.model_fields)
