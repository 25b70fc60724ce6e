"""`kvchat settings` as a user meets it."""

import json

import pytest

from app import paths
from app.cli.main import COMMANDS
from app.setting_definitions import definitions
from tests.app.cli.conftest import kvchat


def written(text: str) -> None:
    paths.settings_path().parent.mkdir(parents=True)
    paths.settings_path().write_text(text)


def test_every_setting_is_listed_with_its_value_and_source() -> None:
    written('# mine\n[chat]\ntemperature = 0.3\ntop_p = 7\n[prompts]\nbrief = "Be brief."\n')
    done = kvchat("settings")
    lines = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert lines["chat.temperature"] == ["0.3", "config.toml"]
    assert lines["chat.top_p"][:3] == ["0.95", "ignored:", "is"]
    assert lines["chat.top_k"] == ["40", "default"]
    assert lines["prompts.brief"] == ["Be", "brief.", "config.toml"]
    assert len(lines) == len(definitions()) + 1
    assert "top_p is 7" in done.stderr
    assert len(json.loads(kvchat("settings", "--json").stdout)) == len(lines)


def test_one_is_changed_explained_and_taken_back() -> None:
    written("# mine\n[chat]\ntemperature = 0.3 # calm\n")
    assert "0.5" in kvchat("settings", "chat.temperature", "0.5").stdout
    assert paths.settings_path().read_text() == "# mine\n[chat]\ntemperature = 0.5 # calm\n"
    printed = kvchat("settings", "chat.temperature").stdout
    for part in ("Sampling temperature", "default 0.7", "0.0 to 10.0", "config.toml"):
        assert part in printed
    assert "default" in kvchat("settings", "chat.temperature", "--default").stdout
    assert "temperature" not in paths.settings_path().read_text()
    assert "default escape" in kvchat("settings", "keys.reply-stop").stdout
    assert "custom" not in kvchat("settings", "speculation.predictor").stdout
    kvchat("settings", "keys.reply-stop", "f8")
    assert 'reply-stop = "f8"' in paths.settings_path().read_text()


def test_the_schema_of_the_file_names_every_setting_with_its_meaning() -> None:
    schema = json.loads(kvchat("settings", "--schema").stdout)
    tables = {
        name: schema["$defs"][each["$ref"].rpartition("/")[2]]["properties"]
        for name, each in schema["properties"].items()
        if "$ref" in each
    }
    named = {(table, key) for table, keys in tables.items() for key in keys}
    assert named == {(each.section, each.key) for each in definitions()}
    assert all(each["description"] for keys in tables.values() for each in keys.values())
    assert tables["chat"]["top_p"]["maximum"] == 1.0
    assert tables["cache"]["warm"]["type"] == ["string", "integer"]


def test_a_theme_is_one_of_ours_of_textuals_or_of_the_users() -> None:
    folder = paths.themes_dir()
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text('name = "mine"\n[colors]\nprimary = "#7ab7ff"\n')
    (folder / "torn.toml").write_text("[colors")
    for name in ("kvchat-light", "nord", "mine"):
        assert kvchat("settings", "ui.theme", name).returncode == 0
    refused = kvchat("settings", "ui.theme", "torn").stderr
    assert "mine" in refused
    assert "torn.toml: " in refused
    assert 'theme = "mine"' in paths.settings_path().read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("chat.temprature",), 2, "did you mean chat.temperature?"),
        (("chat.temperature", "hot"), 1, "0.0 to 10.0"),
        (("chat.temperature", "1", "--default"), 2, "not both"),
        (("--default",), 2, "specify a setting"),
        (("zzz",), 2, "lists all"),
        (("ui.theme", "nope"), 1, "choose one of kvchat-"),
    ],
)
def test_what_cannot_be_reports_what_can(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = kvchat("settings", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert not paths.settings_path().exists()
    assert "settings" in COMMANDS
