"""Arguments of llama-server, and the command line that starts it.

A draft model does nothing there without `--spec-type` (llama.cpp issue 25345), so that is said.
"""

import re
import shlex

from engine.configuration import Configuration
from engine.model.architecture import Model
from engine.presets.export.flag_sets import CURRENT, FlagSet
from engine.presets.export.options import options
from engine.presets.export.request import Exported, ExportError, ExportRequest, slug, writable
from engine.presets.export.unsaid import unsaid

PROGRAM = "llama-server"
_NO_PROGRAM = re.compile(r"-|\w+\+?=|$")


def arguments(configuration: Configuration, flags: FlagSet = CURRENT) -> list[str]:
    """Give the arguments behind the program's name.

    Raises:
        ExportError: a pattern of tensors that llama-server would cut apart.
    """
    return [word for option in options(configuration, flags) for word in option.words]


def command_line(configuration: Configuration, flags: FlagSet = CURRENT) -> str:
    """Give the whole command, quoted for a POSIX shell; raises as `arguments` does."""
    return shlex.join([PROGRAM, *arguments(configuration, flags)])


def remarks(
    configuration: Configuration, model: Model | None = None, flags: FlagSet = CURRENT
) -> list[str]:
    """Say what llama-server does otherwise than kvchat: setting, value, and what happens."""
    return list(unsaid(configuration, model, flags))


def serving(request: ExportRequest, *, host: str | None = None) -> list[str]:
    """Give program and arguments with the address to listen on, the port last.

    Raises:
        ExportError: no program, a path that cannot be written, a pattern that would be cut apart.
    """
    return [
        *_command(request),
        "--host",
        writable(host or request.host),
        "--port",
        str(request.port),
    ]


def heading(
    request: ExportRequest, remarks: tuple[str, ...], *, start: str | None = None
) -> tuple[str, ...]:
    """Give the lines that a commented format starts with; `start` is how the file is used."""
    return (
        f"{request.name}, planned by kvchat for {request.flag_set.builds}",
        *(() if start is None else (f"start: {start}",)),
        *remarks,
        *request.warnings,
    )


def request_remarks(request: ExportRequest) -> tuple[str, ...]:
    """Give the remarks of a request that a llama-server will run."""
    return tuple(remarks(request.configuration, request.model, request.flag_set))


def file_name(request: ExportRequest) -> str:
    """Give a name for a file with the command."""
    return f"{slug(request.name)}.txt"


def render(request: ExportRequest) -> Exported:
    """Give the command on one line.

    Raises:
        ExportError: no program, a path that cannot be written, a pattern that would be cut apart.
    """
    return Exported(shlex.join(_command(request)) + "\n", request_remarks(request))


def _command(request: ExportRequest) -> list[str]:
    if _NO_PROGRAM.match(request.program):
        raise ExportError(
            f"{request.program!r} cannot be started by a shell, which takes it for an option, a "
            "variable or nothing: write the whole path of llama-server"
        )
    words = [request.program, *arguments(request.configuration, request.flag_set)]
    return list(map(writable, words))
