import json
from pathlib import Path

from tests.app.cli.conftest import kvchat


def test_where_lists_places_and_scanned_folders(home: Path) -> None:
    (home / "models").mkdir()
    done = kvchat("where")
    assert done.returncode == 0
    for part in ("settings", "chats.db", "presets", "themes", "logs", "KVCHAT_MODELS"):
        assert part in done.stdout
    assert f"  {home / 'models'}\n" in done.stdout
    assert f"{home / '.lmstudio' / 'models'} (not there yet)" in done.stdout
    assert [path.name for path in home.iterdir()] == ["models"]


def test_where_gives_json(home: Path) -> None:
    (home / "models").mkdir()
    answer = json.loads(kvchat("where", "--json").stdout)
    assert set(answer["places"]) == {
        "settings", "presets", "themes", "chats", "models", "logs", "cache", "states",
    }  # fmt: skip
    assert {"path": str(home / "models"), "exists": True} in answer["model_folders"]
