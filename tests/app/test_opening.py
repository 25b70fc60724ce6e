"""Who drafts when a model is opened."""

from pathlib import Path

import pytest

from app import paths
from app.config import Settings
from app.opening import ChosenModel, ModelRequest, open_here, open_model
from app.store.chats import ChatStore
from app.store.records import Chat
from engine.configuration import ControllerName, PredictorName
from engine.model.library import ModelNotFoundError
from engine.planning.values import AskedThreads
from engine.presets.preset import parse_preset
from tests.support.chats import add_chat
from tests.support.drafting_models import drafting_model


@pytest.mark.parametrize(
    ("has_draft", "predictor"),
    [(False, PredictorName.SUFFIX), (True, PredictorName.COMBINED)],
)
def test_speculation_is_automatic_and_a_draft_model_joins_the_text(
    starter_path: Path, has_draft: bool, predictor: PredictorName
) -> None:
    draft = starter_path if has_draft else None
    rules = parse_preset('name = "x"\n[speculation]\npredictor = "lookup"\n', "x")
    request = ModelRequest(draft=draft and str(draft))
    named = ChosenModel(request, None, draft, rules).configure(starter_path, Settings()).speculation
    assert named.predictor is PredictorName.LOOKUP, "a preset that names one is obeyed"
    configuration = ChosenModel(request, None, draft, None).configure(starter_path, Settings())
    assert (configuration.draft is not None) is has_draft
    assert configuration.speculation.predictor is predictor
    assert configuration.speculation.controller is ControllerName.AUTO


def model_opened(request: ModelRequest, settings: Settings | None = None) -> str:
    return open_model(request, settings or Settings()).configuration.model_path.stem


def test_the_model_is_the_named_one_else_the_presets_the_settings_the_last_or_any(
    home: Path,
) -> None:
    for name in ("any", "last", "mine", "named", "rules"):
        drafting_model(home / "models" / f"{name}.gguf", 1)
    paths.presets_dir().mkdir(parents=True)
    (paths.presets_dir() / "own.toml").write_text('name = "own"\nmodel = "rules"\n')
    mine = Settings.model_validate({"models": {"default": "mine"}})
    assert model_opened(ModelRequest()) == "any"
    with ChatStore(paths.database_path()) as store:
        path = str(home / "models" / "last.gguf")
        add_chat(store, Chat(model_path=path))
    assert model_opened(ModelRequest()) == "last"
    assert model_opened(ModelRequest(), mine) == "mine"
    assert model_opened(ModelRequest(preset="own"), mine) == "rules"
    assert model_opened(ModelRequest(model="named", preset="own"), mine) == "named"


def test_threads_that_are_auto_are_left_open_whatever_rules_and_settings_report(home: Path) -> None:
    model = str(drafting_model(home / "models" / "m.gguf", 1))
    paths.presets_dir().mkdir(parents=True)
    for name, value in (("four", "4"), ("open", '"auto"')):
        text = f'name = "{name}"\nn_threads = {value}\n'
        (paths.presets_dir() / f"{name}.toml").write_text(text)
    two = Settings.model_validate({"engine": {"n_threads": 2}})

    def threads(preset: str | None, asked: AskedThreads = None) -> int | None:
        request = ModelRequest(model, preset=preset, n_threads=asked)
        return open_model(request, two).configuration.n_threads

    assert (threads(None), threads("four"), threads("open")) == (2, 4, None)
    assert (threads("four", "auto"), threads("open", 3), threads(None, "auto")) == (None, 3, None)
    is_open = Settings.model_validate({"engine": {"n_threads": "auto"}})
    opened = open_model(ModelRequest(model), is_open)
    assert opened.configuration.n_threads is None


def test_a_measurement_opens_a_model_here_though_the_last_chat_was_at_a_server(home: Path) -> None:
    drafting_model(home / "models" / "any.gguf", 1)
    with ChatStore(paths.database_path()) as store:
        add_chat(store, Chat(model_path="http://127.0.0.1:9#tiny"))
    assert open_model(ModelRequest(), Settings()).configuration.server == "http://127.0.0.1:9"
    opened = open_here(ModelRequest(), Settings(), "a test").configuration
    assert (opened.server, opened.model_path.stem) == (None, "any")


def test_where_there_is_no_model_it_reports_how_to_get_one(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="kvchat models install-starter"):
        open_model(ModelRequest(), Settings())
