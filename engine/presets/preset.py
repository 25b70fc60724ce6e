"""Presets: rules that a person writes in TOML, strictly read."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from engine.configuration import (
    MOST_COUNT,
    Count,
    EngineSettings,
    KVTypeName,
    MinP,
    SamplingSettings,
    Temperature,
    TopP,
)
from engine.errors import PresetFileError, ServerError, shown
from engine.files import SETTINGS_BYTES, expanded, read_text
from engine.memory.units import GIB, MOST_BYTES
from engine.parsing import parse_toml
from engine.servers import parse_server
from engine.validation import explain, explain_faults, faults_of

MOST_GIB = MOST_BYTES / GIB
TRACE = "kv_trace"
"""Key of the file that gets the torch backend's cache operations; no preset file may name it."""
NOT_RULES = frozenset(
    {"name", "description", "model", "server", "goal", "system_prompt", "draft", "sampling",
     "speculation"}
)  # fmt: skip
"""Keys of a preset that `parse_rule` refuses: tables, and values with an option of their own."""

Gib = Annotated[float, Field(ge=0, le=MOST_GIB)]


class Strict(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What a person writes: no key that is none, no number that is none."""


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
    """How replies are drawn where a preset says nothing else."""

    temperature: Temperature = 0.7
    """0 is greedy."""
    top_k: Count = 40
    top_p: TopP = 0.95
    min_p: MinP = 0.05

    def settings(self) -> SamplingSettings:
        """These rules as a sampler takes them, with paths that hold wherever it is started."""
        return SamplingSettings(**asdict(self)).with_absolute_paths()


class Preset(Strict, EngineSettings, frozen=True):
    """Rules for a configuration; they become numbers with a model and a machine (`resolve`)."""

    name: str = Field(min_length=1, max_length=60, pattern=r"^[\w][\w .+-]*$")
    """Shown in lists; letters, digits, spaces and `.+-_`."""
    description: str = ""
    model: str | None = None
    """Path or name of the model; left out, the preset suits any."""
    server: str | None = None
    """Address of a server that makes the replies, as `http://host:8080`; `model` is its name there
    then. Its key is never written here (docs/servers.md)."""
    goal: Literal["context", "quality", "speed", "balanced"] | None = None
    """What shall be best; a search then settles context, cache types and layers not given here."""
    n_ctx: Annotated[int, Field(ge=1, le=MOST_COUNT)] | Literal["auto", "max"] = "auto"
    """Tokens of context; `auto` is at most 8192, `max` all that fits; neither exceeds training."""
    type_k: KVTypeName | Literal["auto"] = "f16"
    """Type of the cached keys; `auto` is the quickest of those that keep the gates on the texts
    that `kvchat cache-quality` measured, and takes `type_v` along where that is not given."""
    type_v: KVTypeName | Literal["auto"] = "f16"
    """Type of the cached values; as `type_k`."""
    kv_budget_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Most memory that the cache may take; types that are not given are `auto` with it."""
    n_gpu_layers: Count | Literal["auto", "all"] = "auto"
    """Layers on the GPU, the output counting as one; `auto` is as many as fit."""
    n_cpu_moe: Count | Literal["all"] = 0
    """First layers whose experts stay in main memory."""
    mmproj: str | None = None
    """Path of a projector for images (mmproj), or `off`; left out, the one that lies beside the
    model, where exactly one there fits it."""
    lora: tuple[str, ...] = ()
    """Adapters beside the model, each as `FILE` or `FILE:SCALE`."""
    vram_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Memory of the GPU to plan for, instead of the one that is there."""
    ram_gib: Annotated[Gib, Field(gt=0)] | None = None
    """Main memory that a goal plans for, instead of what is free."""
    margin_gib: Gib = 0.5
    """Memory that is kept free on every device."""
    system_prompt: str = ""
    draft: DraftRules | None = None
    sampling: SamplingRules = SamplingRules()

    @field_validator("server")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        """The address as it is used; one with a password in it is refused."""
        try:
            return None if value is None else parse_server(value)
        except ServerError as error:
            raise ValueError(str(error)) from error

    @field_validator("n_threads", "n_threads_batch", mode="before")
    @classmethod
    def _left_open(cls, value: object) -> object:
        """`auto` is what is left out, and comes before a number in the settings."""
        return None if value == "auto" else value


def read_preset(path: Path) -> Preset:
    """Read a preset file.

    Raises:
        PresetFileError: it cannot be read or is not valid; every bad key and value is named.
    """
    try:
        return parse_preset(read_text(path, limit=SETTINGS_BYTES), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise PresetFileError(f"{path} cannot be read: {error}") from error


def parse_preset(text: str, source: str) -> Preset:
    """Read a preset from TOML; `source` names it in messages.

    Raises:
        PresetFileError: it is not valid; every bad key and value is named.
    """
    try:
        data = parse_toml(text)
    except ValueError as error:
        raise PresetFileError(f"{source} is not valid TOML: {error}") from error
    try:
        return Preset.model_validate(data)
    except ValidationError as error:
        raise PresetFileError(faults_of(error, Preset, source)) from error


def parse_rule(text: str) -> tuple[str, object]:
    """Read `KEY=VALUE`: a key of a preset and its value, with a list in brackets.

    Raises:
        PresetFileError: the key is unknown or the value is not valid.
    """
    key, is_rule, value = text.partition("=")
    key = key.strip().replace("-", "_")
    if not is_rule or key in NOT_RULES:
        raise PresetFileError(
            f"{shown(text)}: write a key of a preset and its value, as n_batch=512"
        )
    if key == TRACE:
        return key, expanded(value)
    try:
        typed = parse_toml(f"value = {value}")["value"] if value.startswith("[") else value
        rules = Preset.model_validate({"name": "typed", key: typed})
    except ValidationError as error:
        raise PresetFileError(explain_faults(explain(error, Preset))) from error
    except ValueError as error:
        raise PresetFileError(f"{shown(text)} is not a list: {error}") from error
    return key, getattr(rules, key)
