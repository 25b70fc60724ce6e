"""What reading another program's settings gives."""

from dataclasses import dataclass

from engine.errors import PresetError
from engine.presets.preset import Preset


class ImportedFileError(PresetError):
    """Settings that cannot be read, or that name nothing a preset has."""

    title = "This cannot be imported"


@dataclass(frozen=True, slots=True)
class Imported:
    """A preset made of another program's settings."""

    preset: Preset
    source: str
    """What the settings were read as, for a person."""
    left_out: tuple[str, ...] = ()
    """What a preset has no place for, each as it was written."""
    notes: tuple[str, ...] = ()
    """What was understood in a way that the user should know."""
