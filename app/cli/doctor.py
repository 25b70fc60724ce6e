"""`kvchat doctor`: what works on this machine, and what to change."""

import sys
from collections.abc import Iterator

import click

from app import paths
from app.cli.options import json_option, server_option
from app.config import model_folders
from app.console import note_waiting, print_json, print_line
from app.doctor import (
    Check,
    Status,
    check_build,
    check_folders,
    check_gpu,
    check_terminal,
    check_trial,
)
from app.sanitize import one_line
from engine.model.library import find_model, scan
from engine.model.starter import STARTER

WORDS: dict[Status, tuple[str, str]] = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "fail": ("FAIL", "red"),
}


@click.command(name="doctor")
@click.argument("model", required=False)
@server_option
@json_option
def command(model: str | None, server: str | None, *, as_json: bool) -> None:
    """Check the GPU, llama.cpp (with a trial decode), the terminal and the folders.

    The trial decodes a few tokens with MODEL, else with the starter model, else with the smallest
    model found. With --server, the command instead checks the server and the figures that the
    server reports. The exit code is 1 if kvchat cannot work.
    """
    if server is None:
        checks = _checks(model)
    else:
        from app.server_doctor import check_server  # imports the client of servers

        checks = check_server(server, model, note_waiting)
    found = []
    for check in checks:
        found.append(check)
        if not as_json:
            _print(check)
    if as_json:
        print_json(found)
    sys.exit(any(check.status == "fail" for check in found))


def _checks(model: str | None) -> Iterator[Check]:
    folders = model_folders()
    named = None if model is None else find_model(model, folders)
    entries = scan(folders, cache_path=paths.header_cache_path())
    yield from check_terminal()
    yield from check_folders(entries)
    build, facts = check_build()
    yield build
    yield check_gpu(has_gpu_build=None if facts is None else facts.has_gpu)
    if facts is not None:
        usable = sorted((e for e in entries if e.problem is None), key=lambda entry: entry.nbytes)
        starters = [entry for entry in usable if entry.path.name == STARTER.file_name]
        first = next((entry.path for entry in (*starters, *usable)), None)
        yield check_trial(named or first, paths.doctor_log_path())


def _print(check: Check) -> None:
    word, color = WORDS[check.status]
    print_line((f"{word:<4}", f"bold {color}"), f"  {check.name}: {one_line(check.detail)}")
    if check.advice is not None:
        print_line(f"      -> {check.advice}")
