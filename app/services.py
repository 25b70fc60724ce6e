"""What the screens may ask of the rest: models, presets, estimates; tests give their own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.chat.snapshot import PlannedBytes
from app.render.transcript import TintMode
from engine.configuration import Configuration
from engine.model.library import ModelEntry


@dataclass(frozen=True, slots=True)
class Services:
    """Functions that may take a moment; screens call those in threads."""

    configure: Callable[[Path], Configuration]
    """The configuration that a model is opened with; raises `EngineError`."""
    planned_bytes: Callable[[Configuration], PlannedBytes | None]
    """What the estimate says for it, None where there is no estimate."""
    scan: Callable[[], Sequence[ModelEntry]]
    """The models in the folders."""
    folders: tuple[Path, ...]
    """Folders that are searched for models."""
    install_starter: Callable[[Callable[[str], None]], Path]
    """Installs the starter model and says how far it is; raises `EngineError`."""
    presets_dir: Path
    save_theme: Callable[[str], None]
    """Remembers the theme; raises `EngineError`."""
    save_tint: Callable[[TintMode], None]
    """Remembers how tokens are coloured; raises `EngineError`."""
    save_speculation: Callable[[str, str | int], None] = lambda _key, _value: None
    """Remembers who drafts and by which rule, by the key of the settings; raises `EngineError`."""
    tint: TintMode = "off"
    """How tokens are coloured at the start."""
    keymap: Mapping[str, str] = field(default_factory=dict)
    """The user's keys by binding id."""
    forget_kept: Callable[[str], None] = lambda _: None
    """Removes what lies on disk for an owner alone, such as `chat:12`; raises `EngineError`."""
