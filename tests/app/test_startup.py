from pathlib import Path

import pytest

from app import paths
from app.opening import ModelRequest
from app.startup import AppParts, prepare
from app.store.chats import ChatStore
from app.store.records import Chat
from engine.configuration import Configuration
from engine.errors import IncompatiblePairError, ModelFileError
from tests.support.chats import add_chat
from tests.support.drafting_models import drafting_model

pytestmark = pytest.mark.usefixtures("home")


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


def test_no_model_is_looked_for_where_the_last_chat_was_at_a_server(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    with ChatStore(paths.database_path()) as store:
        add_chat(store, Chat(title="there", model_path="http://cellar:8080#tiny"))
    result = opened(ModelRequest())
    assert result.configuration.server == "http://cellar:8080"
    assert result.model is None


def test_a_model_that_is_not_there_is_reported_before_the_screen_opens() -> None:
    with pytest.raises(ModelFileError):
        prepare(ModelRequest(model="nothing-like-this"))


def test_what_is_wrong_in_the_settings_becomes_notices(home: Path) -> None:
    settings(home, '[models]\ndefault = "gone"\n[ui]\ntheem = "x"\n')
    notices = " ".join(opened(ModelRequest()).notices)
    for part in ("gone", "theem"):
        assert part in notices


def test_a_change_counts_from_the_next_load_on(home: Path, starter_path: Path) -> None:
    services = opened(ModelRequest()).services
    services.settings.change("engine", "n_ctx", 768)
    assert services.configure(starter_path).n_ctx == 768


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


def test_what_speeds_up_a_model_is_hinted_at_once_by_its_shortest_name(home: Path) -> None:
    listed = drafting_model(home / "models" / "tiny.gguf", 1)
    elsewhere = drafting_model(home / "else where" / "other.gguf", 2)
    services = opened(ModelRequest(model=str(listed))).services
    assert "kvchat tune tiny finds the fastest" in str(services.first_hint(listed))
    assert services.first_hint(listed) is None
    assert f"kvchat tune '{elsewhere}' finds" in str(services.first_hint(elsewhere))


def test_planned_bytes_are_those_of_a_model_on_this_machine(starter_path: Path) -> None:
    services = opened(ModelRequest()).services
    planned = services.planned_bytes(Configuration(starter_path, 2048))
    more = services.planned_bytes(Configuration(starter_path, 4096))
    assert planned is not None
    assert more is not None
    assert (
        more.buffers - planned.buffers > 2048 * 23040
    )  # f16 cells of 30 layers with 3 heads of 64
    assert planned.overhead > 0
    assert services.planned_bytes(Configuration.at_server("http://127.0.0.1:9")) is None


def test_the_servers_of_chats_come_before_those_of_presets(starter_path: Path) -> None:
    preset = paths.presets_dir() / "cellar.toml"
    preset.parent.mkdir(parents=True)
    preset.write_text('name = "cellar"\nserver = "http://cellar:1"\nmodel = "tiny"\n')
    with ChatStore(paths.database_path()) as store:
        add_chat(store, Chat(title="here", model_path=str(starter_path)))
        add_chat(store, Chat(title="there", model_path="http://attic:2#tiny"))
    parts = prepare(ModelRequest())
    assert parts.services.servers() == ["http://attic:2#tiny", "http://cellar:1#tiny"]
    parts.close()
