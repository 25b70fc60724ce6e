"""How drafts are judged reaches the engine: from config.toml, a preset and the command line."""

from pathlib import Path

import pytest

import engine.process.client
from app.cli import main
from engine.configuration import Configuration, SpeculationSettings
from engine.errors import EngineError
from tests.gguf_files import header, llama_values, write


class Recorder:
    """An engine that notes what it is asked to load and loads nothing."""

    asked: Configuration | None = None

    def __init__(self, **paths: object) -> None:
        pass

    def load(self, configuration: Configuration) -> None:
        Recorder.asked = configuration
        raise EngineError("nothing is loaded here")

    def close(self) -> None:
        pass


@pytest.fixture
def model(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(engine.process.client, "WorkerClient", Recorder)
    presets = home / ".config" / "kvchat" / "presets"
    presets.mkdir(parents=True)
    (presets / "exact.toml").write_text(
        'name = "exact"\n[speculation]\nverification = "match"\nstrict = true\n'
    )
    (presets.parent / "config.toml").write_text(
        '[speculation]\nverification = "block"\nbonus_token = false\n'
    )
    return write(tmp_path / "model.gguf", header(llama_values()))


def judged(model: Path, *arguments: str) -> tuple[str, bool, bool]:
    Recorder.asked = None
    assert main.run(["run", "hello", "--model", str(model), *arguments]) != 0
    assert Recorder.asked is not None
    settings: SpeculationSettings = Recorder.asked.speculation
    return settings.verification, settings.bonus_token, settings.strict


def test_config_says_how_drafts_are_judged_and_a_preset_takes_its_place(model: Path) -> None:
    assert judged(model) == ("block", False, False)
    assert judged(model, "--preset", "exact") == ("match", True, True)


def test_the_command_line_has_the_last_word(model: Path) -> None:
    flags = ["--verification", "rejection", "--bonus-token", "--strict"]
    assert judged(model, *flags) == ("rejection", True, True)
    other = ["--preset", "exact", "--no-strict", "--no-bonus-token"]
    assert judged(model, *other) == ("match", False, False)
