"""What an export is asked for, and what it gives."""

from dataclasses import dataclass, field
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.units import MIB
from engine.model.architecture import Model
from engine.presets.export.flag_sets import CURRENT, FlagSet

DEFAULT_PORT = 8080
DEFAULT_MARGIN_BYTES = 512 * MIB


class ExportError(PresetError):
    """A value that the target's format has no way to write."""

    title = "This cannot be exported"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A configuration that shall leave for another program."""

    configuration: Configuration
    model: Model | None = None
    """The model's header, where it was read: layers and the chat template come from it."""
    name: str = "kvchat"
    """How the target shall call the model."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    flag_set: FlagSet = CURRENT
    """Which llama-server is addressed, where it is one."""
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    """Memory that the plan keeps free on every device."""
    warnings: tuple[str, ...] = ()
    """What the estimate says about the plan, carried into the export."""


@dataclass(frozen=True, slots=True)
class Companion:
    """Another text that the target needs, for a place of its own."""

    file_name: str
    text: str


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration as text."""

    text: str
    remarks: tuple[str, ...] = ()
    """What the target does otherwise than the plan says: setting, value, and what happens."""
    install_path: Path | None = None
    """Where the target looks for this text, where there is one such place."""
    companions: tuple[Companion, ...] = field(default=())


def writable(text: str) -> str:
    """Give a text that fits on one line of any format.

    Raises:
        ExportError: it has a line break, another control character, or bytes that are no text.
    """
    bad = [character for character in text if not character.isprintable() and character != " "]
    if bad:
        raise ExportError(
            f"{text!r} has the character {bad[0]!r}, which no export can write: rename it, or give "
            "it a link with another name"
        )
    return text
