"""The user's settings: one strict TOML file, every key with a default."""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from app import paths
from app.paths import settings_path
from engine.cache.report import CacheSettings
from engine.configuration import (
    MAX_COUNT,
    Bounds,
    ControllerName,
    Count,
    DraftLength,
    MinP,
    PredictorName,
    Probability,
    RepetitionPenalty,
    SamplingSettings,
    SpeculationSettings,
    Temperature,
    Thinking,
    TopP,
    Verification,
)
from engine.errors import EngineError, HardwareError
from engine.files import SETTINGS_BYTES, read_text, reason_of, replace_file
from engine.memory.units import MIB, parse_bytes
from engine.parsing import parse_toml
from engine.policy.gates import PolicySettings
from engine.validation import MAX_FAULTS, explain

MAX_SLOTS = 16
SIZE_FORMAT = "size"
MAX_SEED = 2**63 - 1
"""Largest seed that the database of chats can store."""

FolderPath = Annotated[Path, Field(strict=False)]
StopText = Annotated[str, Field(min_length=1)]
ContextLength = Annotated[int, Bounds(ge=16, le=MAX_COUNT)]
Location = tuple[str, ...]
"""Names of a table and of a key in it, or of a table alone."""
Value = str | int | float | bool | list[str]
"""Value of a key in the settings file."""


def _read_size(value: object) -> object:
    """Read a size such as `8GiB`, or `0`; what is no text is left to pydantic."""
    if not isinstance(value, str):
        return value
    if value.strip() == "0":
        return 0
    try:
        return parse_bytes(value)
    except HardwareError as error:
        raise ValueError(str(error)) from error


Size = Annotated[
    int,
    BeforeValidator(_read_size),
    Field(ge=0),
    WithJsonSchema({"type": ["string", "integer"], "format": SIZE_FORMAT}),
]
"""Bytes, written with their unit."""


class SettingsError(EngineError):
    """The settings file cannot be changed."""

    title = "The settings cannot be saved"


class UnusedSettingsError(SettingsError):
    """Something in the settings file cannot be used, and what was asked for depends on it."""

    title = "The settings cannot be used"


class _Section(BaseModel):
    # Each table is checked as a part of the whole file only, and the screen waits for this module.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class UISettings(_Section):
    """Settings of the screen's appearance."""

    theme: str = "kvchat-dark"
    """Colour theme; press enter to list and preview the themes."""
    graph_symbols: Literal["braille", "block", "ascii"] = "block"
    """Characters that draw graphs; `ascii` suits screen readers and fonts with few symbols."""
    tint: Literal["off", "source", "verdict"] = "off"
    """Token colours in replies; `source`: by predictor; `verdict`: accepted or rejected; `off`: no
    colours."""
    sidebar: bool = True
    """Show the list of chats beside the transcript on wide screens."""
    animation: Literal["full", "basic", "none"] = "basic"
    """Amount of animation; `none` also stops the blinking of cursors."""


class ChatDefaults(_Section):
    """Sampling in a new chat."""

    temperature: Temperature = 0.7
    """Sampling temperature; 0 always chooses the most likely token."""
    top_k: Count = 40
    """Sample from the k most likely tokens; 0 uses all."""
    top_p: TopP = 0.95
    """Sample from the most likely tokens that together reach this probability; 1 uses all."""
    min_p: MinP = 0.05
    """Drop tokens below this fraction of the most likely token's probability; 0 drops none."""
    repetition_penalty: RepetitionPenalty = 1.0
    """Penalty for recent tokens; above 1: recent tokens become less likely; 1: no penalty."""
    thinking: Thinking = "auto"
    """Whether reasoning models think before they answer; `auto`: the chat template decides."""
    thinking_budget: Count = 0
    """Maximum thinking tokens per reply, after which kvchat ends the thinking; 0: no limit."""
    system_prompt: str = ""
    """System prompt of new chats; empty: no system prompt."""
    max_tokens: Annotated[int, Bounds(ge=1, le=MAX_COUNT)] | None = None
    """Maximum tokens per reply; if unset, only the context size limits a reply."""
    stop: tuple[StopText, ...] = Field(default=(), strict=False)
    """Stop strings: a reply ends before the first stop string that the model writes."""
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)
    """Seed of every reply, for reproducible text; if unset, each reply uses a new seed."""
    reopen: Literal["cut", "last", "never"] = "cut"
    """Whether kvchat opens the last chat at startup; `cut`: only if its reply was cut off;
    `last`: always; `never`: not at all."""

    def sampling(self) -> SamplingSettings:
        """These settings as the sampler takes them."""
        own = {each.name for each in fields(SamplingSettings)}
        return SamplingSettings(**self.model_dump(include=own))


class SpeculationDefaults(_Section):
    """Speculation of models that are opened without a preset."""

    predictor: PredictorName = Field(default=PredictorName.SUFFIX, strict=False)
    """Predictor that proposes draft tokens; `draft` needs a draft model."""
    controller: ControllerName = Field(default=ControllerName.AUTO, strict=False)
    """Controller of the draft length; `fixed`: `n_draft` tokens in every round; `auto`: a length
    chosen from measured costs and acceptance."""
    n_draft: DraftLength = 3
    """Tokens drafted per round by the `fixed` controller."""
    verification: Verification = "coupled"
    """How drafts are verified above temperature 0; `coupled`: for a given seed, the text is the
    same as without drafts; `rejection`: more drafts are accepted, but only the distribution is
    the same."""
    bonus_token: bool = True
    """Add one token sampled from the model after a fully accepted draft."""
    min_acceptance: Probability = 0.0
    """Share of drafted tokens that must be accepted; below it, drafting ends for the rest of the
    reply; 0: no limit."""

    def speculation(self) -> SpeculationSettings:
        """The settings in the form that a session uses."""
        return SpeculationSettings(**self.model_dump())


class ModelSettings(_Section):
    """Folders and default of the models."""

    folders: tuple[FolderPath, ...] = Field(default=(), strict=False)
    """Folders to scan for models, in addition to the default folders."""
    default: str | None = None
    """Model that `kvchat` loads if no model is given: a path, or a name from `kvchat models`."""


class EngineDefaults(_Section):
    """Settings for loading models with llama.cpp."""

    n_ctx: ContextLength | Literal["auto"] = "auto"
    """Context size in tokens if no preset sets it; `auto`: the largest that fits, up to
    8,192 per slot."""
    n_threads: Annotated[int, Field(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Number of decode threads; `auto` adapts it to the load of the machine."""
    projector: Literal["auto", "off"] = "auto"
    """`auto`: load the image projector (`mmproj`) from the model's folder; `off`: load none."""
    use_extra_buffers: bool = True
    """Allow repacked and AMX weight buffers; kvchat turns this off if the installed
    llama.cpp build crashes with such buffers."""


class CacheDefaults(_Section):
    """Which computed states of chats are saved, where, and how many bytes."""

    enabled: bool = True
    """Save states of chats in RAM and on disk, so that chats resume without a full prefill."""
    warm: Size = 1024 * MIB
    """RAM for saved states, such as `1GiB`; 0 saves no states in RAM."""
    cold: Size = 8192 * MIB
    """Disk space for the saved states of all models together; 0 saves no states on disk."""
    min_tokens: Annotated[int, Bounds(ge=1, le=MAX_COUNT)] = 32
    """Save a state only if it contains at least this many tokens that are not saved yet."""
    checkpoint_tokens: Count = 512
    """Save the state of a running reply every N tokens; 0: only at the end of the reply."""
    reserve: Size = 512 * MIB
    """RAM to leave free for other programs; if less is free, kvchat evicts states from RAM."""
    slots: int = Field(default=1, ge=1, le=MAX_SLOTS)
    """Number of slots, each with a KV cache for one chat or branch; `n_slots` in a preset overrides
    this."""

    def cache(self, folder: Path) -> CacheSettings:
        """These settings as the engine takes them.

        Args:
            folder: Where states on disk lie.
        """
        return CacheSettings(
            folder=folder if self.enabled and self.cold else None,
            warm_bytes=self.warm if self.enabled else 0,
            cold_bytes=self.cold if self.enabled else 0,
            min_tokens=self.min_tokens,
            checkpoint_tokens=self.checkpoint_tokens,
            reserve_bytes=self.reserve,
        )


class Settings(_Section):
    """All tables of config.toml."""

    ui: UISettings = UISettings()
    chat: ChatDefaults = ChatDefaults()
    speculation: SpeculationDefaults = SpeculationDefaults()
    models: ModelSettings = ModelSettings()
    engine: EngineDefaults = EngineDefaults()
    cache: CacheDefaults = CacheDefaults()
    cache_policy: PolicySettings = PolicySettings()
    prompts: dict[str, str] = Field(default_factory=dict)
    """System prompts by name."""
    keys: dict[str, str] = Field(default_factory=dict)
    """Key of an action, by the id that the help screen shows: `reply-stop = "f8"`; `none` removes
    the key."""


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and what was wrong with the file."""

    settings: Settings
    problem: str | None = None
    """One message that names every key that is not used, or why the file is not read."""
    faults: Mapping[Location, str] = field(default_factory=dict)
    """Why each key or table that is not used is not."""
    given: frozenset[Location] = frozenset()
    """Table and key of each setting that the file has."""


def load_settings(path: Path | None = None) -> LoadedSettings:
    """Read the settings; what is wrong in the file is left out and named, never raised.

    Args:
        path: The file; None is the user's own. A file that is not there is all defaults.
    """
    path = path or settings_path()
    try:
        text = read_text(path, limit=SETTINGS_BYTES)
        content = parse_toml(text)
    except FileNotFoundError:
        return LoadedSettings(Settings())
    except OSError as error:
        return LoadedSettings(
            Settings(), f"{path} cannot be read ({reason_of(error)}): kvchat uses the defaults"
        )
    except ValueError as error:
        return LoadedSettings(
            Settings(), f"{path} is not valid TOML ({error}): kvchat uses the defaults"
        )
    return _validated(content, path)


class UserSettings:
    """The user's settings while kvchat runs: changed one at a time and written at once."""

    def __init__(self, path: Path | None = None) -> None:
        """Read the file.

        Args:
            path: The file; None is the user's own.
        """
        self.path = path or settings_path()
        self.loaded = load_settings(self.path)

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self.loaded.settings

    def change(self, section: str, key: str, value: Value | None) -> None:
        """Write one key, which takes effect; None removes it from the file.

        Raises:
            SettingsError: As of `save_setting`.
        """
        save_setting(section, key, value, self.path)
        self.loaded = load_settings(self.path)


def model_folders() -> tuple[Path, ...]:
    """The folders that are scanned for models, those of the settings among them."""
    return paths.model_folders(load_settings().settings.models.folders)


def require_settings() -> Settings:
    """The user's settings, for what deletes by them.

    Raises:
        UnusedSettingsError: the file is not read, or a part of it is left out.
    """
    loaded = load_settings()
    if loaded.problem is not None:
        raise UnusedSettingsError(
            f"{settings_path()} has errors: correct the file first (nothing was deleted or changed)"
        )
    return loaded.settings


def save_setting(section: str, key: str, value: Value | None, path: Path | None = None) -> None:
    """Change one key of the settings file; its comments and other keys stay as they are.

    Args:
        section: Name of the table, such as `ui`.
        key: Name of the key, such as `theme`.
        value: The new value; None removes the key, which restores its default.
        path: The file; None is the user's own. It is made when it is not there.

    Raises:
        SettingsError: If the key or value is invalid, or the file cannot be read or written.
    """
    require_valid(section, key, value)
    path = path or settings_path()
    try:
        text = read_text(path, limit=SETTINGS_BYTES) if path.exists() else ""
        changed = set_in_toml(text, section, {key: value})
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {reason_of(error)}") from error
    except ValueError as error:
        raise SettingsError(
            f"{path} is not valid TOML ({error}): correct the file first"
        ) from error
    write_atomically(path, changed)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file whole, or leave it as it was; it is for its owner only.

    A link is followed, so that settings in another folder stay there.

    Raises:
        SettingsError: If the file cannot be written.
    """
    target = path.resolve()
    try:
        replace_file(target, [text.encode()], is_durable=False)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {reason_of(error)}") from error


def _validated(content: dict[str, object], path: Path) -> LoadedSettings:
    """Validate, leaving out whatever is wrong."""
    given = frozenset(
        (name, key) for name, table in content.items() if isinstance(table, dict) for key in table
    )
    try:
        return LoadedSettings(Settings.model_validate(content), given=given)
    except ValidationError as error:
        faults = _faults(error)
    for location in faults:
        _remove(content, location)
    shown = [f"{_named(location)}{reason}" for location, reason in faults.items()][:MAX_FAULTS]
    if len(faults) > MAX_FAULTS:
        shown.append(f"and {len(faults) - MAX_FAULTS:,} more")
    problem = f"invalid settings in {path} are ignored: {'; '.join(shown)}"
    return LoadedSettings(Settings.model_validate(content), problem, faults, given)


def _faults(error: ValidationError) -> dict[Location, str]:
    faults = explain(error, Settings, unknown="an unknown setting")
    return {where[:2]: reason for where, reason in faults}


def _named(location: Location) -> str:
    return f"[{location[0]}] {location[1]}" if len(location) == 2 else f"[{location[0]}]"


def _remove(content: MutableMapping[str, object], location: tuple[str, ...]) -> None:
    first, *rest = location
    inner = content.get(first)
    if rest and isinstance(inner, dict):
        inner.pop(rest[0], None)
    else:
        content.pop(first, None)


def require_valid(section: str, key: str, value: Value | None) -> None:
    """Make sure that a key may have a value.

    Raises:
        SettingsError: It is none of the settings, or may not have the value.
    """
    try:
        Settings.model_validate({section: {} if value is None else {key: value}})
    except ValidationError as error:
        location, reason = next(iter(_faults(error).items()))
        raise SettingsError(f"{_named(location)}{reason}") from error


def set_in_toml(text: str, section: str, values: Mapping[str, Value | None]) -> str:
    """A TOML text with keys of one table set, or taken out where they are None.

    Comments, order and format of the rest stay.

    Raises:
        ValueError: It is not valid TOML, or has something else than a table by that name.
    """
    import tomlkit  # takes 0.04 s and is for writing only
    from tomlkit.exceptions import TOMLKitError

    parse_toml(text)
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ValueError(str(error)) from error
    table = document.setdefault(section, tomlkit.table())
    if not isinstance(table, dict):
        raise ValueError(f"{section} is not a table: write it as [{section}]")
    for key, value in values.items():
        if value is None:
            table.pop(key, None)
        elif isinstance(value, str) and "\n" in value:
            table[key] = tomlkit.string(value, multiline="\r" not in value)
        else:
            table[key] = value
    return tomlkit.dumps(document)
