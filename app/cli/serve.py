"""`kvchat serve`: a preset as a llama-server, started, watched and shown."""

import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import click

from app import paths
from app.cli.plan import (
    MachineOptions,
    machine_options,
    planner_options,
    setup_of_options,
    types_notes,
)
from app.console import note, note_waiting, print_line
from app.opening import ModelRequest
from app.planning import user_planner
from engine.backends.server.session import ServerSession
from engine.configuration import Configuration
from engine.errors import ServerError
from engine.memory.dry_run import measured_bytes
from engine.memory.server_log import LogError, read_buffers
from engine.memory.terms import TermKind
from engine.memory.units import format_bytes
from engine.planning.planner import Plan
from engine.planning.report import export_request
from engine.presets.library import named_preset
from engine.presets.llama_server import serving
from engine.process.server_process import (
    WILDCARDS,
    ServerProcess,
    address_of,
    find_llama_server,
    free_port,
    is_exposed,
)

SHOW_EVERY_S = 10.0
WATCHED = ("--log-verbosity", "4", "--metrics")
"""Options for which llama-server 0c1e570 logs its allocations and reports its metrics."""


@click.command(name="serve")
@click.argument("name", metavar="[PRESET|MODEL]", required=False)
@machine_options
@planner_options
@click.option("--model", "-m", metavar="MODEL", help="Model, if the preset specifies none.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [any free port]")
@click.option(
    "--llama-server", metavar="FILE", help="Path of llama-server. [$LLAMA_SERVER, else from PATH]"
)
@click.option(
    "--chat/--no-chat",
    "chats",
    default=None,
    help="Open a chat that uses the server. [yes, on a terminal]",
)
@click.option("--keep", is_flag=True, help="Leave the server running when kvchat ends.")
def command(
    asked: ModelRequest,
    machine: MachineOptions,
    name: str | None,
    host: str,
    port: int | None,
    llama_server: str | None,
    chats: bool | None,
    keep: bool,
    **options: object,
) -> None:
    """Start llama-server with PRESET or MODEL, and open a chat that uses the server.

    kvchat compares the memory that the server reports with the plan. kvchat restarts the server
    after a crash, with growing delays, and stops the server on exit unless --keep is given.

    \b
    kvchat serve balanced --model qwen2.5-7b
    kvchat serve qwen2.5-7b --ctx 32k --slots 4 --no-chat
    """  # noqa: D301  click wants the backspace character itself
    if name is not None and asked.model is None and _is_model(name, asked.preset):
        name, asked = None, replace(asked, model=name)
    if name is not None and asked.preset is not None:
        raise click.UsageError("specify the preset once: as PRESET or with --preset")
    asked = replace(asked, preset=name or asked.preset)
    program = find_llama_server(llama_server)
    planner = user_planner()
    plan = planner.plan(setup_of_options(asked, machine, "llama-server", planner, options))
    host = host.removeprefix("[").removesuffix("]")
    port = port or free_port(host)
    server = _server_of(plan, program, host, port)
    for text in types_notes(plan, asked, options):
        note(text)
    note(f"starting {program}, listening at {address_of(host, port)}")
    if is_exposed(host):
        note(
            f"anyone who can reach port {port} can use the server without a key: leave out --host "
            "to allow only this machine, or use a trusted network"
        )
    _end_in_order()
    server.start()
    try:
        print_line(f"{server.url} serves {plan.model.file.path.stem}; the log is {server.log_path}")
        _compare(plan, server)
        if chats is None:
            chats = sys.stdout.isatty() and sys.stdin.isatty()
        if chats:
            from app.application import open_chat  # imports Textual

            open_chat(ModelRequest(server=server.url))
        else:
            _show(server)
    finally:
        if keep:
            server.leave()
            note(
                f"the server keeps running as process {server.pid}: stop it with `kill "
                f"{server.pid}`"
            )
        else:
            server.end()


def _is_model(name: str, preset: str | None) -> bool:
    """Whether the argument is a model: the preset is an option, or no preset has that name."""
    if preset is not None:
        return True
    is_file = name.endswith(".toml")
    return not is_file and named_preset(name, paths.presets_dir(), or_file=True) is None


def _server_of(plan: Plan, program: Path, host: str, port: int) -> ServerProcess:
    """The server of a plan, not started; what it does otherwise than the plan is noted."""
    request = export_request(plan, host=host, port=port, server=str(program))
    for text in request.warnings:
        note(text)
    return ServerProcess(
        [*serving(request), *WATCHED],
        url=f"http://{address_of(WILDCARDS.get(host, host), port)}",
        log_path=paths.worker_log_path().with_name("llama-server.log"),
        report=note,
    )


def _end_in_order() -> None:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that the server is stopped."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
        if (number := getattr(signal, name, None)) is not None:
            signal.signal(number, leave)


def _compare(plan: Plan, server: ServerProcess) -> None:
    """Print the planned memory beside that in the server's log."""
    devices = plan.estimate.devices
    try:
        measured = sum(measured_bytes(read_buffers(server.log_path), devices).values())
    except LogError as error:
        note(f"the memory use of the server could not be read: {error}")
        return
    planned = sum(each.total_bytes - each.term(TermKind.OVERHEAD).nbytes for each in devices)
    off = f" (plan {planned / measured - 1:+.1%})" if measured else ""
    print_line(f"memory: planned {format_bytes(planned)}, allocated {format_bytes(measured)}{off}")


def _show(server: ServerProcess) -> None:
    session = ServerSession(Configuration.at_server(server.url, is_trusted=True), emit=note_waiting)
    note("Ctrl+C stops the server")
    shown = ""
    try:
        while True:
            try:
                figures = session.look().figures
            except ServerError:
                figures = ()
            text = " · ".join(each.text for each in figures if each.panel != "memory")
            if text != shown:
                print_line(f"{time.strftime('%H:%M:%S')}  {text}")
                shown = text
            time.sleep(SHOW_EVERY_S)
    except KeyboardInterrupt:
        print_line("")
    finally:
        session.close()
