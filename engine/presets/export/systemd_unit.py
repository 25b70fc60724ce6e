"""A systemd user service that keeps llama-server running."""

from pathlib import Path

from engine.presets.export.llama_server import heading, request_remarks, serving
from engine.presets.export.quoting import lines_of, systemd_program, systemd_word
from engine.presets.export.request import (
    Exported,
    ExportRequest,
    comments,
    slug,
    with_absolute_paths,
    writable,
)

UNITS = Path("~/.config/systemd/user")


def file_name(request: ExportRequest) -> str:
    """Give the name of the service."""
    return f"{slug(request.name)}.service"


def render(request: ExportRequest) -> Exported:
    """Give a unit for `systemctl --user`.

    Raises:
        ExportError: a path that cannot be written, or a program that systemd does not start.
    """
    remarks = request_remarks(request)
    if "/" not in request.program:
        remarks = (
            *remarks,
            f"systemd looks for {request.program} in its own path (/usr/local/bin, /usr/bin): "
            "write the whole path if it lies elsewhere",
        )
    (program,), *options = lines_of(serving(with_absolute_paths(request)))
    lines = (" ".join(map(systemd_word, line)) for line in options)
    command = " \\\n    ".join((systemd_program(program), *lines))
    start = f"systemctl --user enable --now {file_name(request)}"
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
    return Exported(text, remarks, install_path=UNITS.expanduser() / file_name(request))
