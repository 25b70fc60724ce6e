"""Who drafts when a model is opened."""

from dataclasses import replace
from pathlib import Path

import pytest

from app import paths
from app.config import Settings
from app.opening import ModelRequest, configure, open_model
from app.store.chats import ChatStore
from app.store.records import NewChat
from engine.configuration import ControllerName, PredictorName, SamplingSettings
from engine.model.library import ModelNotFoundError
from engine.planning.values import AskedThreads
from engine.presets.preset import parse_preset
from tests.support.drafting_models import drafting_model

LOOK_UP = '[speculation]\npredictor = "lookup"\ncontroller = "fixed"\n'


@pytest.mark.parametrize(
    ("has_draft", "predictor"),
    [(False, PredictorName.SUFFIX), (True, PredictorName.COMBINED)],
)
def test_speculation_is_automatic_and_a_draft_model_joins_the_text(
    starter_path: Path, has_draft: bool, predictor: PredictorName
) -> None:
    draft = starter_path if has_draft else None
    configuration = configure(starter_path, draft, None, Settings())
    assert (configuration.draft is not None) is has_draft
    assert configuration.speculation.predictor is predictor
    assert configuration.speculation.controller is ControllerName.AUTO


def test_a_preset_says_who_drafts_whatever_draft_was_named(starter_path: Path) -> None:
    rules = parse_preset(f'name = "x"\n{LOOK_UP}', "x")
    speculation = configure(starter_path, starter_path, rules, Settings()).speculation
    assert speculation.predictor is PredictorName.LOOKUP
    assert speculation.controller is ControllerName.FIXED


def test_a_preset_that_names_nobody_leaves_it_to_suffixes(starter_path: Path) -> None:
    speculation = configure(
        starter_path, None, parse_preset('name = "x"', "x"), Settings()
    ).speculation
    assert speculation.predictor is PredictorName.SUFFIX
    assert speculation.controller is ControllerName.AUTO


def test_the_settings_say_how_many_lines_the_context_holds(starter_path: Path) -> None:
    one = configure(starter_path, None, None, Settings())
    cache = {"slots": 3}
    three = configure(starter_path, None, None, Settings.model_validate({"cache": cache}))
    assert (one.n_slots, three.n_slots) == (1, 3)
    assert three.n_ctx == 3 * one.n_ctx  # of all slots together


def test_a_preset_says_so_itself(starter_path: Path) -> None:
    settings = Settings.model_validate({"cache": {"slots": 3}})
    rules = parse_preset('name = "x"\nn_slots = 2', "x")
    assert configure(starter_path, None, rules, settings).n_slots == 2


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty HOME whose models lie in `models`."""
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    for name in ("KVCHAT_MODELS", "LLAMA_CACHE", "HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


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
        store.create_chat(
            NewChat(title="", model_path=path, system_prompt="", sampling=SamplingSettings())
        )
    assert model_opened(ModelRequest()) == "last"
    assert model_opened(ModelRequest(), mine) == "mine"
    assert model_opened(ModelRequest(preset="own"), mine) == "rules"
    assert model_opened(ModelRequest(model="named", preset="own"), mine) == "named"


def test_context_and_threads_that_were_asked_for_stand_over_the_rules(home: Path) -> None:
    model = drafting_model(home / "models" / "m.gguf", 1)
    request = ModelRequest(str(model), n_ctx=512, n_threads=3)
    configuration = open_model(request, Settings()).configuration
    assert (configuration.n_ctx, configuration.n_threads) == (512, 3)


def test_threads_that_are_auto_are_left_open_whatever_rules_and_settings_say(home: Path) -> None:
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


def test_where_there_is_no_model_it_says_how_to_get_one(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="kvchat models install-starter"):
        open_model(ModelRequest(), Settings())


def test_a_preset_keeps_weights_out_of_repacked_buffers_as_the_settings_do(home: Path) -> None:
    drafting_model(home / "models" / "m.gguf", 1)
    paths.presets_dir().mkdir(parents=True, exist_ok=True)
    own = paths.presets_dir() / "own.toml"
    own.write_text('name = "own"\nmodel = "m"\nuse_extra_buffers = false\n')
    plain = Settings.model_validate({"engine": {"use_extra_buffers": False}})
    request = ModelRequest("m")
    assert not open_model(
        replace(request, preset="own"), Settings()
    ).configuration.use_extra_buffers
    assert not open_model(request, plain).configuration.use_extra_buffers
    assert open_model(request, Settings()).configuration.use_extra_buffers
