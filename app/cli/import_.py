"""`kvchat import`: another program's settings as a preset."""

import sys
from dataclasses import asdict
from pathlib import Path

import click

from app import paths
from app.cli.options import json_option
from app.config import model_folders
from app.console import log_line, print_json, print_text
from engine.files import expanded, is_file, read_file_or_pipe, reason_of
from engine.model.architecture import read_model
from engine.model.library import find_model
from engine.presets.export import Imported, ImportedFileError
from engine.presets.formats import read_text
from engine.presets.library import preset_toml, save_preset
from engine.presets.llama_server import read_words, server_index

STANDARD_INPUT = "-"
MAX_FILE_BYTES = 2**20
"""Bytes of the largest file that is read: settings are text of a few kilobytes."""


@click.command(name="import")
@click.argument("words", nargs=-1, required=True, metavar="FILE | - | -- COMMAND...")
@click.option("--name", metavar="NAME", help="Name of the preset.")
@click.option("--entry", metavar="NAME", help="Section, model or service to import from the file.")
@click.option(
    "--model", metavar="MODEL", help="Model of the preset, if the imported settings specify none."
)
@click.option("--save", "saves", is_flag=True, help="Save the preset.")
@click.option("--force", is_flag=True, help="Replace an existing preset.")
@json_option
def command(
    words: tuple[str, ...],
    *,
    name: str | None,
    entry: str | None,
    model: str | None,
    saves: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Make a preset from another program's settings.

    FILE is a llama-server command line, a script, systemd unit or compose file that contains one,
    an environment file, a models preset (INI), a llama-swap configuration, LM Studio's defaults for
    a model, an Ollama Modelfile, or koboldcpp settings. The preset is printed to standard output.
    Settings that a preset cannot hold are listed on standard error.

    \b
    kvchat import serve.sh --name server --save
    kvchat import -- llama-server -m qwen2.5-7b.gguf -c 32768 -fa on -ctk q8_0
    kvchat import llama-swap.yaml --entry qwen
    kvchat import <(ssh server cat serve.sh)
    """  # noqa: D301  click wants the backspace character itself
    found = _imported(words, name, entry, model)
    if as_json:
        preset = found.preset.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        print_json({**asdict(found), "preset": preset})
    else:
        print_text([preset_toml(found.preset).rstrip("\n")])
        for text in found.left_out:
            log_line(f"# left out: {text}")
        for text in found.notes:
            log_line(f"# {text}")
    if saves:
        path = save_preset(found.preset, paths.presets_dir(), replace_existing=force)
        log_line(f"# saved as {path}")


def _imported(
    words: tuple[str, ...], name: str | None, entry: str | None, model: str | None
) -> Imported:
    is_flag = words[0].startswith("-") and words[0] != STANDARD_INPUT
    if len(words) > 1 or is_flag or (server_index(words) == 0 and not is_file(Path(words[0]))):
        return read_words(words, name=name)
    path = None if model is None else find_model(model, model_folders())
    return read_text(
        _text_of(words[0]),
        name=name,
        entry=entry,
        model=None if path is None else str(path),
        n_layers=None if path is None else read_model(path).architecture.n_blocks,
    )


def _text_of(source: str) -> str:
    try:
        if source == STANDARD_INPUT:
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            path = expanded(source)
            data = read_file_or_pipe(path, limit=MAX_FILE_BYTES)
    except OSError as error:
        raise ImportedFileError(
            f"{source} cannot be read: {reason_of(error)}. To import a command, write it after `--`"
        ) from error
    if len(data) > MAX_FILE_BYTES:
        raise ImportedFileError(
            f"{source} is larger than {MAX_FILE_BYTES} bytes: specify a settings file"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ImportedFileError(f"{source} is not UTF-8 text: {error}") from error
