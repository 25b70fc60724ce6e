"""`kvchat export`: a plan as another program's settings."""

import shlex
from dataclasses import replace
from pathlib import Path

import click

from app.cli.options import FILE, joined, json_option
from app.cli.plan import (
    MachineOptions,
    machine_options,
    planner_options,
    setup_of_options,
    types_notes,
)
from app.console import log_line, print_json, print_line, print_text
from app.opening import ModelRequest
from app.planning import user_planner
from engine.planning.report import export_request
from engine.presets.export import Exported, ExportRequest, Format, install, write
from engine.presets.formats import FORMATS, export_format
from engine.presets.llama_server import PROGRAM, arguments

LIST = "list"
DEFAULT_FORMAT = "llama-server"


export_options = joined(
    click.option("--format", "format_name", default=DEFAULT_FORMAT, show_default=True,
                 metavar="NAME", help="Export format; `list` prints all formats."),
    machine_options,
    planner_options,
    click.option("--name", metavar="NAME", help="Model name in the other program."),
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True,
                 help="Port to listen on."),
    click.option("--llama-server", "program", default="llama-server", metavar="PATH",
                 help="Path of llama-server on the target machine."),
    click.option("--output", "-o", type=FILE, metavar="FILE",
                 help="Output file; --force replaces an existing file."),
    click.option("--install", "installs", is_flag=True,
                 help="Save the export where the other program looks for it."),
    click.option("--force", is_flag=True, help="Replace an existing file."),
    json_option,
)  # fmt: skip


@click.command(name="export")
@click.argument("model", required=False)
@export_options
def command(
    asked: ModelRequest,
    machine: MachineOptions,
    *,
    format_name: str,
    name: str | None,
    host: str,
    port: int,
    program: str,
    output: Path | None,
    installs: bool,
    force: bool,
    as_json: bool,
    **options: object,
) -> None:
    """Export the configuration of MODEL as settings for another program.

    Rules such as `auto` and `max` become numbers for this machine, or for the machine that --vram,
    --card and --ram describe. MODEL is optional if the preset specifies one. Warnings of the plan,
    and notes on what the other program does differently, become comments; if the format has no
    comments, they go to standard error.

    \b
    kvchat export qwen2.5-7b --preset balanced
    kvchat export qwen2.5-7b --ctx 32k --format compose -o compose.yaml
    kvchat export qwen2.5-7b --format lm-studio --install
    """  # noqa: D301  click wants the backspace character itself
    if format_name == LIST:
        _show_formats(as_json=as_json)
        return
    if as_json and (installs or output is not None):
        raise click.UsageError("--json prints the export: leave out -o and --install")
    format_ = export_format(format_name)
    planner = user_planner()
    plan = planner.plan(setup_of_options(asked, machine, "llama-server", planner, options))
    request = export_request(
        plan, preset=asked.preset, name=name, host=host, port=port, server=program
    )
    about_types = types_notes(plan, asked, options)
    request = replace(request, warnings=(*about_types, *request.warnings))
    exported = format_.render(request)
    notes = (*exported.differences, *request.warnings)
    if installs:
        path, backup = install(exported, format_, replace_existing=force)
        print_line(str(path))
        if backup is not None:
            log_line(f"# backup of the previous file: {backup}")
    elif output is not None:
        for path in write(exported, output, replace_existing=force):
            print_line(str(path))
    elif as_json:
        _show_json(format_, request, exported)
        return
    else:
        print_text([exported.text], nl=False)
        notes = about_types if format_.has_comments else notes
    for note in notes:
        log_line(f"# {note}")


def _show_formats(*, as_json: bool) -> None:
    if as_json:
        print_json([{"name": each.name, "title": each.title} for each in FORMATS.values()])
        return
    width = max(map(len, FORMATS))
    for each in FORMATS.values():
        print_line(f"{each.name:{width}}  {each.title}")


def _show_json(format_: Format, request: ExportRequest, exported: Exported) -> None:
    configuration = request.configuration
    server = {
        "program": request.program,
        "args": arguments(configuration),
        "command": shlex.join([PROGRAM, *arguments(configuration)]),
    }
    print_json({
        "format": format_.name,
        **(server if format_.starts_server else {}),
        "file_name": format_.file_name(request),
        "text": exported.text,
        "companions": exported.companions,
        "install_path": exported.install_path,
        "differences": exported.differences,
        "warnings": request.warnings,
    })  # fmt: skip
