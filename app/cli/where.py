"""`kvchat where`: every file and folder that kvchat reads or writes."""

from pathlib import Path

import click

from app import paths
from app.cli.console import Part, print_json, say
from app.cli.options import json_option
from app.config import model_folders
from app.sanitize import one_line


@click.command(name="where")
@json_option
def command(*, as_json: bool) -> None:
    """Print the folders of kvchat and the folders searched for models."""
    if as_json:
        print_json(_as_json())
        return
    width = max(map(len, files_and_folders()))
    for name, path in files_and_folders().items():
        say(f"{name:<{width}}  ", *_marked(path))
    say("\nfolders searched for models, in this order (KVCHAT_MODELS adds folders):")
    for folder in model_folders():
        say("  ", *_marked(folder))


def files_and_folders() -> dict[str, Path]:
    """Each kind of file, and where it is."""
    return {
        "settings": paths.settings_path(),
        "presets": paths.presets_dir(),
        "themes": paths.themes_dir(),
        "chats": paths.database_path(),
        "models": paths.models_dir(),
        "logs": paths.state_dir(),
        "cache": paths.cache_dir(),
        "states": paths.snapshots_dir(),
    }


def _marked(path: Path) -> tuple[Part, ...]:
    return (one_line(str(path)), *(() if path.exists() else ((" (does not exist yet)", "dim"),)))


def _as_json() -> dict[str, object]:
    return {
        "places": {name: str(path) for name, path in files_and_folders().items()},
        "model_folders": [
            {"path": str(folder), "exists": folder.is_dir()} for folder in model_folders()
        ],
    }
