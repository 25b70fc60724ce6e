"""What an export is asked for and gives, what an import reads and gives, and a format of both."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.units import MIB
from engine.model.architecture import Model
from engine.validation import nearest

if TYPE_CHECKING:
    from engine.presets.preset import Preset

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


class ImportedFileError(PresetError):
    """Settings that cannot be read, or that name nothing a preset has."""

    title = "This cannot be imported"


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
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    """Memory that the plan keeps free on every device."""
    warnings: tuple[str, ...] = ()
    """What the estimate says about the plan, carried into the export."""

    @property
    def n_layers(self) -> int | None:
        """Layers of the model, where its header was read."""
        return None if self.model is None else self.model.architecture.n_blocks


@dataclass(frozen=True, slots=True)
class Companion:
    """Another text that the target needs, in a file of its own."""

    file_name: str
    text: str


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration as text."""

    text: str
    remarks: tuple[str, ...] = ()
    """What the target does otherwise than the plan says: setting, value, and what happens."""
    install_path: Path | None = None
    """Where the target looks for this text, where there is one such path."""
    companions: tuple[Companion, ...] = ()


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """A text of another program that shall become a preset."""

    text: str
    data: Mapping[str, object] | None = None
    """The object that the text is, where it is JSON."""
    name: str | None = None
    """How the preset shall be called; None leaves that to the text."""
    entry: str | None = None
    """Which section, model or service, where a text has several."""
    model: str | None = None
    """Model of the preset, where the text names none."""
    n_layers: int | None = None
    """Layers of that model, which LM Studio's shares are shares of."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A preset made of another program's settings."""

    preset: "Preset"
    source: str
    """What the settings were read as, for a person."""
    left_out: tuple[str, ...] = ()
    """What a preset has no field for, each as it was written."""
    notes: tuple[str, ...] = ()
    """What was understood in a way that the user should know."""


@dataclass(frozen=True, slots=True)
class Format:
    """One program or wrapping: its way out, and its way in."""

    name: str
    """How the command line and the screen call it."""
    title: str
    file_name: Callable[[ExportRequest], str]
    render: Callable[[ExportRequest], Exported]
    has_comments: bool = True
    """Whether the text itself carries remarks and warnings; else they are shown beside it."""
    starts_server: bool = False
    """Whether the text starts a llama-server."""
    merge: Callable[[str, str], str] | None = None
    """Joins a text that is there already with the exported one, which wins."""
    recognises: Callable[[ImportRequest], bool] = lambda _: False
    """Whether a text is of this format; a plain command line is read as a shell's text."""
    read: Callable[[ImportRequest], Imported] | None = None
    """Raises `ImportedFileError` where the text names nothing that a preset has."""


def slug(name: str) -> str:
    """A name that files, services and sections can have: letters, digits and `._-`."""
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:MAX_SLUG]
    return short.strip("-.") or "model"


def named_file(ending: str) -> Callable[[ExportRequest], str]:
    """The file name of a format: the model's name as a slug, and an ending."""
    return lambda request: f"{slug(request.name)}{ending}"


def comments(lines: Iterable[str], mark: str = "#") -> str:
    """Each line as a comment, with its line break; inner line breaks become spaces."""
    return "".join(f"{mark} {_readable(' '.join(line.split()))}\n" for line in lines)


def _readable(line: str) -> str:
    return _TURNS.sub("\ufffd", UNWRITABLE.sub("\ufffd", line))


def writable(text: str) -> str:
    """The text itself, which fits on one line of any format.

    Raises:
        ExportError: it has a line break, another control character, or bytes that are no text.
    """
    if bad := UNWRITABLE.search(text):
        raise ExportError(
            f"{text!r} has the character {bad[0]!r}, which no export can write: rename it, or "
            "link it under another name"
        )
    return text


def yaml_text(text: str) -> str:
    """A text as a double-quoted YAML scalar; every JSON string is one (YAML 1.2, §1.3).

    What YAML has not in a file is escaped, and so are the characters that only YAML breaks at.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return UNWRITABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def json_text(data: object) -> str:
    """A file of JSON, as a person reads it."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def with_absolute_paths(request: ExportRequest) -> ExportRequest:
    """The request with paths that do not depend on where the target is started."""
    configuration = request.configuration
    draft = configuration.draft
    mmproj = configuration.mmproj_path
    placed = replace(
        configuration,
        model_path=configuration.model_path.absolute(),
        mmproj_path=None if mmproj is None else mmproj.absolute(),
        adapters=tuple(
            replace(adapter, path=adapter.path.absolute()) for adapter in configuration.adapters
        ),
        draft=None if draft is None else replace(draft, model_path=draft.model_path.absolute()),
        sampling=configuration.sampling.with_absolute_paths(),
    )
    return replace(request, configuration=placed)


def number(value: float) -> str:
    """A number with every digit it needs and no more: 3 for 3.0."""
    return str(int(value)) if value == int(value) else repr(value)


def chosen(names: Collection[str], wanted: str | None, what: str) -> str:
    """The name that is wanted, or the only one there is.

    Raises:
        ImportedFileError: it is not there, or there are several and none is wanted.
    """
    if wanted in names:
        return str(wanted)
    listed = ", ".join(names)
    if wanted is not None:
        near = nearest(wanted, names)
        hint = f": did you mean {near[0]}?" if near else ""
        raise ImportedFileError(f"no {what} is called {wanted!r}{hint} There are {listed}")
    if len(names) != 1:
        raise ImportedFileError(f"there are {len(names)} of them, name one {what}: {listed}")
    return next(iter(names))
