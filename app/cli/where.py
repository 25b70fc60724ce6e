"""`kvchat where`: every place that kvchat reads or writes."""

import json
from pathlib import Path

import click

from app import locations


@click.command(name="where")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, as_json: bool) -> None:
    """Show where kvchat keeps its files, and the folders that it scans for models."""
    if as_json:
        click.echo(json.dumps(_as_json(), indent=2))
        return
    width = max(map(len, places()))
    for name, path in places().items():
        click.echo(f"{name:<{width}}  {_marked(path)}")
    click.echo("\nscanned for models, in this order (KVCHAT_MODELS adds folders):")
    for folder in locations.model_folders():
        click.echo(f"  {_marked(folder)}")


def places() -> dict[str, Path]:
    """Give each kind of file and where it is."""
    return {
        "settings": locations.settings_path(),
        "presets": locations.presets_dir(),
        "themes": locations.themes_dir(),
        "chats": locations.database_path(),
        "models": locations.models_dir(),
        "logs": locations.state_dir(),
        "cache": locations.cache_dir(),
        "states": locations.snapshots_dir(),
    }


def _marked(path: Path) -> str:
    return str(path) if path.exists() else f"{path} {click.style('(not there yet)', dim=True)}"


def _as_json() -> dict[str, object]:
    return {
        "places": {name: str(path) for name, path in places().items()},
        "model_folders": [
            {"path": str(folder), "exists": folder.is_dir()} for folder in locations.model_folders()
        ],
    }
