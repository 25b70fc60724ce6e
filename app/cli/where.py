"""`kvchat where`: every file and folder that kvchat reads or writes."""

from pathlib import Path

import click

from app import paths
from app.cli.options import json_option
from app.config import model_folders
from app.console import Part, print_json, print_line
from app.sanitize import one_line


@click.command(name="where")
@json_option
def command(*, as_json: bool) -> None:
    """Print the folders of kvchat and the folders searched for models."""
    places = files_and_folders()
    if as_json:
        folders = [{"path": each, "exists": each.is_dir()} for each in model_folders()]
        print_json({"places": places, "model_folders": folders})
        return
    width = max(map(len, places))
    for name, path in places.items():
        print_line(f"{name:<{width}}  ", *_marked(path))
    print_line("\nfolders searched for models, in order (the variable KVCHAT_MODELS adds folders):")
    for folder in model_folders():
        print_line("  ", *_marked(folder))


def files_and_folders() -> dict[str, Path]:
    """Each kind of file, and its path."""
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
