from pathlib import Path

import pytest

from app import paths
from app.commands import every_action
from app.opening import ModelRequest
from app.startup import AppParts, prepare
from app.store.chats import ChatStore
from app.store.records import NewChat
from engine.configuration import SamplingSettings
from engine.errors import IncompatiblePairError, ModelFileError, PresetError
from engine.memory.estimate import estimate
from engine.memory.hardware import usable_devices
from engine.model.architecture import read_model
from tests.support.drafting_models import drafting_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HOME, so that nothing of the user's is read or written."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("KVCHAT_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def opened(request: ModelRequest) -> AppParts:
    result = prepare(request)
    result.close()
    return result


def settings(home: Path, text: str) -> None:
    path = home / "config" / "kvchat" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_an_empty_home_has_no_model_to_open() -> None:
    result = opened(ModelRequest())
    assert result.model is None
    assert result.services.folders
    assert result.notices == ()


def test_the_starter_opens_where_it_is_found(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    assert opened(ModelRequest()).model == starter_path


def test_no_model_is_looked_for_where_the_last_chat_was_at_a_server(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    with ChatStore(paths.database_path()) as store:
        store.create_chat(NewChat(title="there", model_path="http://cellar:8080#tiny"))
    result = opened(ModelRequest())
    assert result.configuration is not None
    assert result.configuration.server == "http://cellar:8080"
    assert result.model is None


def test_the_model_used_last_opens_before_the_starter(
    starter_path: Path, gemma_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    with ChatStore(paths.database_path()) as store:
        store.create_chat(
            NewChat(
                title="", model_path=str(gemma_path), system_prompt="", sampling=SamplingSettings()
            )
        )
    assert opened(ModelRequest()).model == gemma_path


def test_a_model_that_is_not_there_is_told_before_the_screen_opens() -> None:
    with pytest.raises(ModelFileError):
        prepare(ModelRequest(model="nothing-like-this"))


def test_a_preset_that_is_not_there_is_told_before_the_screen_opens() -> None:
    with pytest.raises(PresetError):
        prepare(ModelRequest(preset="nothing-like-this"))


def test_what_is_wrong_in_the_settings_becomes_notices(home: Path) -> None:
    settings(home, '[models]\ndefault = "gone"\n[ui]\ntheem = "x"\n')
    notices = " ".join(opened(ModelRequest()).notices)
    for part in ("gone", "theem"):
        assert part in notices


def test_the_settings_say_how_large_the_context_is_where_no_preset_does(
    home: Path, starter_path: Path
) -> None:
    settings(home, "[engine]\nn_ctx = 1024\n")
    assert opened(ModelRequest()).services.configure(starter_path).n_ctx == 1024
    asked = opened(ModelRequest(n_ctx=2048)).services.configure(starter_path)
    assert asked.n_ctx == 2048


def test_a_change_counts_from_the_next_load_on(home: Path, starter_path: Path) -> None:
    services = opened(ModelRequest()).services
    services.settings.change("engine", "n_ctx", 768)
    assert services.configure(starter_path).n_ctx == 768


def test_the_real_model_is_configured_with_what_fits(starter_path: Path) -> None:
    services = opened(ModelRequest()).services
    configuration = services.configure(starter_path)
    assert 512 <= configuration.n_ctx <= 8192
    planned = services.planned_bytes(configuration)
    assert planned is not None
    assert planned.buffers > starter_path.stat().st_size * 0.9
    planner = estimate(read_model(starter_path), configuration, usable_devices())
    both = sum(device.total_bytes for device in planner.devices)
    assert planned.buffers + planned.overhead == both, "one plan has one sum"


def test_the_keys_of_every_screen_can_be_bound_anew() -> None:
    ids = [action.id for action in every_action()]
    assert ids == sorted(set(ids))
    assert {"chat-new", "message-copy", "composer-send", "chats-delete", "help-close"} <= set(ids)


def test_new_chats_draw_as_the_preset_says_else_as_the_settings(home: Path) -> None:
    settings(home, "[chat]\ntemperature = 0.25\n")
    presets = paths.presets_dir()
    presets.mkdir(parents=True)
    (presets / "cold.toml").write_text('name = "cold"\n[sampling]\ntemperature = 0.5\n')
    drawn = opened(ModelRequest()).controller.history.sampling.temperature
    preset = opened(ModelRequest(preset="cold")).controller.history.sampling.temperature
    assert (drawn, preset) == (0.25, 0.5)


def test_a_model_that_the_draft_cannot_draft_for_is_opened_without_it(home: Path) -> None:
    models = home / "models"
    first = drafting_model(models / "first.gguf", 4)
    draft = drafting_model(models / "draft.gguf", 1)
    other = drafting_model(models / "other.gguf", 4, [f"word {n}" for n in range(300)])
    services = opened(ModelRequest(model=str(first), draft=str(draft))).services
    configuration = services.configure(first)
    assert configuration.draft is not None
    assert services.types_note(configuration) is None
    configuration = services.configure(other)
    assert configuration.draft is None
    note = services.types_note(configuration)
    assert note is not None
    assert "draft.gguf" in note
    wrong = opened(ModelRequest(model=str(other), draft=str(draft))).services
    with pytest.raises(IncompatiblePairError):
        wrong.configure(other)
