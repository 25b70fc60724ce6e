"""A systemd user service that keeps llama-server running, and what a unit starts as a preset."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

from engine.files import expanded
from engine.presets.programs.base import (
    Exported,
    ExportError,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    comments,
    named_file,
    with_absolute_paths,
    writable,
)
from engine.presets.programs.llama_server import heading, read_words, request_remarks, serving
from engine.presets.programs.shell import Reader, lines_of

UNITS = Path("~/.config/systemd/user")

_PREFIXES = "@-:+!|"
"""They change how systemd starts a program (systemd.service(5), `|` since version 258)."""
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,@+-]+")
_EXEC_START = re.compile(r"^ExecStart[ \t]*=[ \t]*[-@:+!|]*(.+)$", re.MULTILINE)
_BARE_VARIABLE = re.compile(r"\$[A-Za-z_]\w*")
_ENVIRONMENT = re.compile(r"^Environment[ \t]*=[ \t]*(.*)$", re.MULTILINE)
_ENVIRONMENT_FILE = re.compile(r"^EnvironmentFile[ \t]*=[ \t]*(.+)$", re.MULTILINE)


def render(request: ExportRequest) -> Exported:
    """A unit for `systemctl --user`.

    Raises:
        ExportError: a path that cannot be written, or a program that systemd does not start.
    """
    (program,), *options = lines_of(serving(with_absolute_paths(request)))
    remarks = request_remarks(request)
    if "/" not in request.program:
        remarks = (
            *remarks,
            f"systemd looks for {request.program} in /usr/local/bin and /usr/bin: write "
            "the whole path if it is elsewhere",
        )
    lines = (" ".join(map(_word, line)) for line in options)
    command = " \\\n    ".join((_program(program), *lines))
    unit_name = file_name(request)
    start = f"systemctl --user enable --now {unit_name}"
    name = writable(request.name).replace("%", "%%")
    text = (
        f"{comments(heading(request, remarks, start=start))}"
        "[Unit]\n"
        f"Description=llama-server with {name}\n"
        "\n"
        "[Service]\n"
        f"ExecStart={command}\n"
        "Restart=on-failure\n"
        "RestartSec=5\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    return Exported(text, remarks, install_path=expanded(UNITS) / unit_name)


def is_unit(request: ImportRequest) -> bool:
    """Whether a text is a unit that starts something."""
    return re.search(r"^\[Service\]", request.text, re.MULTILINE) is not None


def read(request: ImportRequest) -> Imported:
    """The preset of what a unit starts.

    Raises:
        ImportedFileError: it starts nothing, or nothing that a preset has a field for.
    """
    joined = re.sub(r"\\\n", " ", request.text)
    started = _EXEC_START.search(joined)
    if started is None:
        raise ImportedFileError("this systemd unit has no ExecStart")
    pairs = [
        word.replace("%%", "%").partition("=")
        for found in _ENVIRONMENT.finditer(joined)
        for word in _split(found[1])
    ]
    reader = Reader({variable: value for variable, _, value in pairs})
    files = tuple(f"EnvironmentFile={path}" for path in _ENVIRONMENT_FILE.findall(joined))
    words: list[str] = []
    for word in _split(started[1]):
        filled = reader.interpolated(word).replace("%%", "%")
        words += filled.split() if _BARE_VARIABLE.fullmatch(word) else [filled]
    found = read_words(words, request.name, reader.variables, reader.unset)
    return replace(found, source="what a systemd unit starts", left_out=(*found.left_out, *files))


def _word(word: str) -> str:
    """Quote a word of `ExecStart=` (systemd.syntax(7), systemd.service(5) and .unit(5)).

    `%` starts a specifier and `$` a variable: both are doubled.
    """
    return _quoted(word.replace("$", "$$"))


def _program(program: str) -> str:
    """Quote the first word of `ExecStart=`, in which `$` starts no variable (systemd 252).

    Raises:
        ExportError: it is neither a bare name nor a whole path, or starts with one of systemd's
            prefixes, which quotes do not undo.
    """
    is_name = "/" not in program and program not in ("", ".", "..")
    if not (is_name or program.startswith("/")) or program[0] in _PREFIXES:
        raise ExportError(
            f"systemd cannot start {program!r}: write its whole path, without a prefix of "
            f"{' '.join(_PREFIXES)}"
        )
    return _quoted(program)


def _quoted(word: str) -> str:
    doubled = word.replace("%", "%%")
    if _PLAIN.fullmatch(word):
        return doubled
    escaped = doubled.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise ImportedFileError(f"this systemd unit cannot be split into words: {error}") from error


file_name = named_file(".service")
FORMAT = Format(
    "systemd",
    "systemd service with llama-server",
    file_name,
    render,
    starts_server=True,
    recognises=is_unit,
    read=read,
)
