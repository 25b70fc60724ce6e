"""What an export is asked for, and what it gives."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.units import MIB
from engine.model.architecture import Model
from engine.presets.export.flag_sets import CURRENT, FlagSet

UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
"""Controls, breaks of lines and paragraphs, bytes that are no text, and no characters at all; YAML
1.2 has none of them in a comment (§5.1)."""
_TURNS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What turns the direction of a line."""
MAX_SLUG = 100
"""Letters; a YAML key has 1,024 at most, a file name 255 with its ending."""

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
    program: str = "llama-server"
    """Path or name of llama-server, for the formats that start one."""
    uses_gpu: bool = True
    """Whether the plan lays anything on a GPU."""
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


def slug(name: str) -> str:
    """Give a name that files, services and sections can have: letters, digits and `._-`."""
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:MAX_SLUG]
    return short.strip("-.") or "model"


def comments(lines: Iterable[str], mark: str = "#") -> str:
    """Give each line as a comment, with its line break; inner line breaks become spaces."""
    return "".join(f"{mark} {_readable(' '.join(line.split()))}\n" for line in lines)


def _readable(line: str) -> str:
    return _TURNS.sub("\ufffd", UNWRITABLE.sub("\ufffd", line))


def with_absolute_paths(request: ExportRequest) -> ExportRequest:
    """Give the request with paths that do not depend on where the target is started."""
    configuration = request.configuration
    draft = configuration.draft
    mmproj = configuration.mmproj_path
    placed = replace(
        configuration,
        model_path=configuration.model_path.absolute(),
        mmproj_path=None if mmproj is None else mmproj.absolute(),
        lora_paths=tuple(path.absolute() for path in configuration.lora_paths),
        draft=None if draft is None else replace(draft, model_path=draft.model_path.absolute()),
    )
    return replace(request, configuration=placed)


def writable(text: str) -> str:
    """Give a text that fits on one line of any format.

    Raises:
        ExportError: it has a line break, another control character, or bytes that are no text.
    """
    if bad := UNWRITABLE.search(text):
        raise ExportError(
            f"{text!r} has the character {bad[0]!r}, which no export can write: rename it, or give "
            "it a link with another name"
        )
    return text
