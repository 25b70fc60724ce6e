"""Presets: rules in TOML, strictly read; every fault raises `PresetFileError`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from engine import configuration as limits
from engine.configuration import Count, EngineSettings, KVTypeName, SamplingSettings
from engine.errors import PresetFileError, ServerError, shown
from engine.files import SETTINGS_BYTES, expanded, read_text, reason_of
from engine.memory.units import GIB, MAX_BYTES
from engine.parsing import parse_toml
from engine.servers import parse_server
from engine.validation import explain, explain_faults, faults_of

MAX_GIB = MAX_BYTES / GIB
TRACE = "kv_trace"
"""File of the torch backend's cache operations: an option of the command, no key of a file."""
NOT_RULES = frozenset(
    {"name", "description", "model", "server", "goal", "system_prompt", "draft", "sampling",
     "speculation"}
)  # fmt: skip
"""Keys that `parse_rule` refuses: tables, and values with an option of their own."""

Gib = Annotated[float, Field(ge=0, le=MAX_GIB)]


class Strict(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """A table without unknown keys and without NaN."""


class DraftRules(Strict, frozen=True):
    """The draft model."""

    model: str
    """Path or name of the draft model."""
    n_gpu_layers: Count | Literal["all"] = "all"
    """Layers of the draft on the GPU."""
    type_k: KVTypeName = "f16"
    type_v: KVTypeName = "f16"


@dataclass(frozen=True, slots=True)
class SamplingRules(SamplingSettings):
    """Sampling of a preset, with its defaults."""

    temperature: limits.Temperature = 0.7
    """0 is greedy."""
    top_k: Count = 40
    top_p: limits.TopP = 0.95
    min_p: limits.MinP = 0.05

    def settings(self) -> SamplingSettings:
        """The sampler's settings, with absolute paths."""
        return SamplingSettings(**asdict(self)).with_absolute_paths()


class Preset(Strict, EngineSettings, frozen=True):
    """Rules for a configuration; a model and a machine make numbers of them (`resolve`)."""

    name: str = Field(min_length=1, max_length=60, pattern=r"^[\w][\w .+-]*$")
    """Shown in lists; letters, digits, spaces and `.+-_`."""
    description: str = ""
    model: str | None = None
    """Path or name of the model; without it the preset suits any."""
    server: str | None = None
    """Address of a server that replies, as `http://host:8080`; `model` is its name there. The key
    is never written here (docs/servers.md)."""
    goal: Literal["context", "quality", "speed", "balanced"] | None = None
    """Goal of the search that chooses the context, K/V types and layers that are not set."""
    n_ctx: Annotated[int, Field(ge=1, le=limits.MAX_COUNT)] | Literal["auto", "max"] = "auto"
    """Tokens of context; `auto` is at most 8192, `max` all that fits; neither exceeds training."""
    type_k: KVTypeName | Literal["auto"] = "f16"
    """Type of the cached keys; `auto` is the fastest type that passes the gates of
    `kvchat cache-quality`, also for `type_v` if that is not set."""
    type_v: KVTypeName | Literal["auto"] = "f16"
    """Type of the cached values; as `type_k`."""
    kv_budget_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Most memory for the cache; types that are not set are `auto` with it."""
    n_gpu_layers: Count | Literal["auto", "all"] = "auto"
    """Layers on the GPU, the output counting as one; `auto` is as many as fit."""
    n_cpu_moe: Count | Literal["all"] = 0
    """First layers whose experts stay in RAM."""
    mmproj: str | None = None
    """Path of a projector for images (mmproj), or `off`; by default the only one beside the model
    that fits it."""
    lora: tuple[str, ...] = ()
    """LoRA adapters, each as `FILE` or `FILE:SCALE`."""
    vram_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Memory of the GPU to plan for, instead of this machine's."""
    ram_gib: Annotated[Gib, Field(gt=0)] | None = None
    """RAM to plan for, instead of what is free."""
    margin_gib: Gib = 0.5
    """Memory that stays free on every device."""
    system_prompt: str = ""
    draft: DraftRules | None = None
    sampling: SamplingRules = SamplingRules()

    @field_validator("server")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        try:
            return None if value is None else parse_server(value)
        except ServerError as error:
            raise ValueError(str(error)) from error

    @field_validator("n_threads", "n_threads_batch", mode="before")
    @classmethod
    def _left_open(cls, value: object) -> object:
        return None if value == "auto" else value


def read_preset(path: Path) -> Preset:
    """Read a preset file; the error names every bad key and value."""
    try:
        return parse_preset(read_text(path, limit=SETTINGS_BYTES), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise PresetFileError(f"{path} cannot be read: {reason_of(error)}") from error


def parse_preset(text: str, source: str) -> Preset:
    """Read a preset from TOML; `source` names it in the error, with every bad key and value."""
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise PresetFileError(f"{source} is not valid TOML: {error}") from error
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        raise PresetFileError(faults_of(error, Preset, source)) from error


def made_preset(
    data: Mapping[str, object],
    prefix: str = "this is not a preset: ",
    *,
    unknown: str = "an unknown key",
) -> Preset:
    """A preset of these keys; the error begins with `prefix` and names every fault."""
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        faults = explain_faults(explain(error, Preset, unknown=unknown))
        raise PresetFileError(f"{prefix}{faults}") from error


def parse_rule(text: str) -> tuple[str, object]:
    """Read `KEY=VALUE`: a key of a preset and its value, with a list in brackets."""
    key, is_rule, value = text.partition("=")
    key = key.strip().replace("-", "_")
    if not is_rule or key in NOT_RULES:
        raise PresetFileError(
            f"{shown(text)} is not a setting: write a preset key and its value, such as n_batch=512"
        )
    if key == TRACE:
        return key, expanded(value)
    try:
        typed = parse_toml(f"value = {value}")["value"] if value.startswith("[") else value
    except ValueError as error:
        raise PresetFileError(f"{shown(text)} is not a list: {error}") from error
    return key, getattr(made_preset({"name": "typed", key: typed}, prefix=""), key)
