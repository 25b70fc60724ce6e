"""Types of exports and imports, text that every format can hold, and files written.

Faults raise `ExportError` or `ImportedFileError`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.files import RECORDS_BYTES, read_text, reason_of, replace_file
from engine.memory.units import MIB
from engine.model.architecture import Model
from engine.validation import did_you_mean

if TYPE_CHECKING:
    from engine.presets.preset import Preset

UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
"""Controls, line and paragraph separators, surrogates and noncharacters (YAML 1.2, §5.1)."""
_DIRECTION = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MAX_SLUG = 100
"""Letters; a YAML key has 1,024 at most, a file name 255 with its ending."""
DEFAULT_PORT = 8080
DEFAULT_MARGIN_BYTES = 512 * MIB


class ExportError(PresetError):
    """A value that the format of the other program cannot express."""

    title = "The settings cannot be exported"


class ImportedFileError(PresetError):
    """Settings that cannot be read, or that name nothing a preset has."""

    title = "The settings cannot be imported"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A configuration to write for another program."""

    configuration: Configuration
    model: Model | None = None
    """The model's header, if it was read: layers and the chat template come from it."""
    name: str = "kvchat"
    """Name of the model in the other program."""
    program: str = "llama-server"
    """Path or name of llama-server, for the formats that start one."""
    uses_gpu: bool = True
    """Whether the plan places anything on a GPU."""
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    """Memory that the plan leaves free on every device."""
    warnings: tuple[str, ...] = ()
    """Warnings of the plan, written into the export."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration as text."""

    text: str
    differences: tuple[str, ...] = ()
    """Differences between the program and the plan: setting, value and consequence."""
    install_path: Path | None = None
    """Where the program looks for this text, if there is one such path."""
    companions: Mapping[str, str] = field(default_factory=dict)
    """Texts of further files that the program needs, by file name."""


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """A text of another program."""

    text: str = ""
    data: Mapping[str, object] = field(default_factory=dict)
    """The parsed object of a JSON text."""
    entry: str | None = None
    """Section, model or service of a text that has several."""
    n_layers: int | None = None
    """Layers of the model, which LM Studio's ratios refer to."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A preset made from another program's settings."""

    preset: "Preset"
    source: str
    """Format in which the settings were read."""
    left_out: tuple[str, ...] = ()
    """Settings that a preset cannot hold, as they were written."""
    notes: tuple[str, ...] = ()
    """Values that the text leaves to defaults."""


@dataclass(frozen=True, slots=True)
class Format:
    """A program or file format: its writer and its reader."""

    name: str
    title: str
    file_name: Callable[[ExportRequest], str]
    render: Callable[[ExportRequest], Exported]
    recognises: Callable[[ImportRequest], bool]
    read: Callable[[ImportRequest], Imported]
    """Raises `ImportedFileError` if the text has no setting that a preset has."""
    has_comments: bool = True
    """Whether the text itself carries differences and warnings; else they are printed."""
    starts_server: bool = False
    """Whether the text starts a llama-server."""
    merge: Callable[[str, str], str] | None = None
    """Merges an existing text and the exported one, which wins."""


def slug(name: str) -> str:
    """A name for files, services and sections: letters, digits and `._-`."""
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:MAX_SLUG]
    return short.strip("-.") or "model"


def named_file(ending: str) -> Callable[[ExportRequest], str]:
    """File name of a format: the slug of the model's name, and an ending."""
    return lambda request: f"{slug(request.name)}{ending}"


def comments(lines: Iterable[str], mark: str = "#") -> str:
    """Each line as one comment line; line breaks inside become spaces."""
    plain = (_DIRECTION.sub("\ufffd", UNWRITABLE.sub("\ufffd", " ".join(x.split()))) for x in lines)
    return "".join(f"{mark} {line}\n" for line in plain)


def writable(text: str) -> str:
    """The text itself; a line break, another control character or a surrogate is an error."""
    if bad := UNWRITABLE.search(text):
        raise ExportError(
            f"{text!r} contains the character {bad[0]!r}, which no export can write: rename "
            "the file, or link to it under another name"
        )
    return text


def json_text(data: object) -> str:
    """Indented JSON of a file."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def with_absolute_paths(request: ExportRequest) -> ExportRequest:
    """The request with paths that do not depend on the working directory."""
    configuration = request.configuration
    draft, mmproj = configuration.draft, configuration.mmproj_path
    adapters = (replace(each, path=each.path.absolute()) for each in configuration.adapters)
    absolute = replace(
        configuration,
        model_path=configuration.model_path.absolute(),
        mmproj_path=None if mmproj is None else mmproj.absolute(),
        adapters=tuple(adapters),
        draft=None if draft is None else replace(draft, model_path=draft.model_path.absolute()),
        sampling=configuration.sampling.with_absolute_paths(),
    )
    return replace(request, configuration=absolute)


def chosen(names: Collection[str], wanted: str | None, what: str) -> str:
    """The wanted name, or the only one."""
    if wanted in names:
        return str(wanted)
    listed = ", ".join(names)
    if wanted is not None:
        hint = did_you_mean(wanted, names) or ":"
        raise ImportedFileError(f"there is no {what} {wanted!r}{hint} choose one of {listed}")
    if not names:
        raise ImportedFileError(f"this file has no {what}")
    if len(names) > 1:
        raise ImportedFileError(f"the file has {len(names)} {what}s: choose one of {listed}")
    return next(iter(names))


def write(exported: Exported, path: Path, *, replace_existing: bool = False) -> list[Path]:
    """Write an export and its companions; returns the files."""
    if path != exported.install_path and not path.parent.exists():
        raise ExportError(
            f"the folder {path.parent} does not exist: create it, or choose another file"
        )
    texts = {path: exported.text}
    texts |= {path.with_name(name): text for name, text in exported.companions.items()}
    for file in texts:
        if file.exists() and not replace_existing:
            raise ExportError(
                f"{file} already exists: choose another file, or pass --force to replace it"
            )
    for file, text in texts.items():
        _write(file, text, mode=0o777 if text.startswith("#!") else 0o666)
    return list(texts)


def install(
    exported: Exported, format_: Format, *, replace_existing: bool = False
) -> tuple[Path, Path | None]:
    """Write an export where its program looks for it; returns that file and the backup.

    A format that merges saves the existing text as a backup and merges it with the export.
    """
    path = exported.install_path
    if path is None:
        raise ExportError(f"{format_.title} has no default path on this system: choose a file")
    if format_.merge is None or not path.exists():
        write(exported, path, replace_existing=replace_existing)
        return path, None
    try:
        existing, mode = read_text(path, limit=RECORDS_BYTES), path.stat().st_mode & 0o777
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError(f"{path} cannot be read: {reason_of(error)}") from error
    merged, backup = format_.merge(existing, exported.text), path.with_name(f"{path.name}.bak")
    number = 1
    while backup.exists():
        number += 1
        backup = path.with_name(f"{path.name}.bak{number}")
    _write(backup, existing, mode=mode)
    _write(path, merged, mode=mode)
    return path, backup


def _write(path: Path, text: str, *, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [text.encode()], is_durable=False, mode=mode)
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {reason_of(error)}") from error
