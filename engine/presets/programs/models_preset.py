"""The INI of llama-server's router, `--models-preset` (llama.cpp b11434, `common/preset.cpp`)."""

import re

from engine.errors import shown
from engine.presets.programs.base import (
    Exported,
    ExportError,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    chosen,
    comments,
    named_file,
    slug,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.flags import given_pairs
from engine.presets.programs.llama_server import heading, options, preset_from, request_remarks

GLOBAL = "*"
OWN_KEYS = frozenset({"version", "load-on-startup", "stop-timeout", "dedup-cache-models"})
"""Keys of the preset itself: they are no flags of a server."""
UNIT_SECTIONS = ("Unit", "Service", "Install")
"""Those that a systemd unit begins with."""

_HEADER = re.compile(r"\[([^\]]+)\]\s*(?:[;#].*)?")
_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=([^;#]*)(?:[;#].*)?")

Sections = dict[str, dict[str, str]]


def render(request: ExportRequest) -> Exported:
    """An INI with one section; the router sets host and port itself.

    Raises:
        ExportError: a value has a character that the INI cannot hold.
    """
    configuration = with_absolute_paths(request).configuration
    keys = "".join(
        f"{option.name} = {_value(writable(option.value or 'true'))}\n"
        for option in options(configuration)
    )
    remarks = request_remarks(request)
    if configuration.tensor_overrides and configuration.n_cpu_moe:
        remarks = (
            *remarks,
            f"n_cpu_moe is {configuration.n_cpu_moe}: the router applies it before the "
            "tensor overrides, so experts of those layers stay in RAM in any case",
        )
    start = f"llama-server --models-preset {file_name(request)} --port {request.port}"
    top = comments(heading(request, remarks, start=start), mark=";")
    return Exported(f"{top}version = 1\n\n[{slug(request.name)}]\n{keys}", remarks)


def is_models_preset(request: ImportRequest) -> bool:
    """Whether the first line that says something is a section of no unit, or the version."""
    lines = (line.strip() for line in request.text.splitlines())
    first = next((line for line in lines if line and line[0] not in ";#"), "")
    if header := _HEADER.fullmatch(first):
        return header[1] not in UNIT_SECTIONS
    return re.match(r"version\s*=", first) is not None


def read(request: ImportRequest) -> Imported:
    """The preset of one section, with what `[*]` says for all.

    Raises:
        ImportedFileError: it is not such a file, or there are several sections and none is named.
    """
    sections = _sections(request.text)
    shared = {**sections.pop("", {}), **sections.pop(GLOBAL, {})}
    if not sections:
        sections = {request.name or "models preset": {}}
    title = chosen(sections, request.entry, "section")
    pairs = {**shared, **sections[title]}
    given = given_pairs((key, value) for key, value in pairs.items() if key not in OWN_KEYS)
    return preset_from(given, request.name or title, f"section [{title}] of a models preset")


def _value(value: str) -> str:
    """The value itself, if the INI of llama-server can hold it.

    Raises:
        ExportError: it has a `;` or `#`, which start a comment anywhere, or spaces at an end.
    """
    if any(mark in value for mark in ";#") or value != value.strip():
        raise ExportError(
            f"llama-server's models preset has no quotes, and {value!r} has a `;`, a `#` or a "
            "space at its end: rename it, or link it under another name"
        )
    return value


def _sections(text: str) -> Sections:
    sections: Sections = {}
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped[0] in ";#":
            continue
        if match := _HEADER.fullmatch(line.rstrip()):
            current = match[1].strip()
            sections.setdefault(current, {})
        elif match := _PAIR.fullmatch(line.rstrip()):
            sections.setdefault(current, {})[match[1]] = match[2].strip(" \t")
        else:
            raise ImportedFileError(
                f"line {number} is neither a section nor `key = value`: {shown(stripped)}"
            )
    return sections


file_name = named_file(".ini")
FORMAT = Format(
    "models-preset",
    "llama-server router, --models-preset INI",
    file_name,
    render,
    starts_server=True,
    recognises=is_models_preset,
    read=read,
)
