"""Results of a benchmark: a speed, and a recommendation in a preset's file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from app import bench, paths
from app.bench import preset_file, write_arm, write_recommendation
from app.cli.main import run
from engine.configuration import (
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import PresetError
from engine.events import Event, Finished
from engine.experiment.arm import PLAIN, parse_arm
from engine.experiment.records import read_results
from engine.model.identity import model_identity
from engine.model.speeds import Speeds
from engine.presets.preset import read_preset
from engine.process.blocking_client import BlockingClient
from engine.requests import GenerationRequest
from tests.engine.experiment.answering_client import AnsweringClient, loaded, steady
from tests.engine.experiment.made_results import record, results
from tests.support.drafting_models import drafting_model
from tests.support.fakes_client import CONFIGURATION

MODEL = Path("/models/target.gguf")
TEXT = """\
# Mine, do not lose this.
name = "Mine"
n_ctx = 4096  # enough

[speculation]  # who drafts
predictor = "suffix"
n_draft = 5  # measured once
bonus_token = false
"""


def write(path: Path, arm: str, draft: Path | None = None) -> None:
    drafting = None if draft is None else DraftConfiguration(draft, n_ctx=2048)
    configuration = replace(CONFIGURATION, model_path=MODEL, draft=drafting)
    write_arm(path, parse_arm(arm), configuration, "Mine")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_only_what_was_recommended_changes_in_a_preset(path: Path) -> None:
    write(path, "lookup:fixed:2")
    assert path.read_text(encoding="utf-8") == TEXT.replace('"suffix"', '"lookup"').replace(
        "n_draft = 5", "n_draft = 2"
    ).replace("bonus_token = false\n", 'bonus_token = false\ncontroller = "fixed"\n')
    rules = read_preset(path).speculation
    assert (rules.predictor, rules.n_draft, rules.bonus_token) == (PredictorName.LOOKUP, 2, False)


def test_a_length_stays_where_the_controller_has_none(path: Path) -> None:
    write(path, "combined:auto")
    rules = read_preset(path).speculation
    assert (rules.controller, rules.n_draft) == (ControllerName.AUTO, 5)


def test_no_speculation_is_written_too(path: Path) -> None:
    write(path, PLAIN.name)
    assert read_preset(path).speculation.predictor is PredictorName.OFF


def test_a_preset_that_is_not_there_is_made_for_the_model(tmp_path: Path) -> None:
    path = tmp_path / "presets" / "mine.toml"
    write(path, "draft:fixed:4", draft=Path("/models/draft.gguf"))
    preset = read_preset(path)
    assert (preset.name, preset.model) == ("Mine", str(MODEL))
    assert preset.draft.model == "/models/draft.gguf"


def test_a_draft_model_is_named_only_where_it_takes_part_and_none_is_named(path: Path) -> None:
    write(path, "lookup:fixed:2", draft=Path("/models/draft.gguf"))
    assert read_preset(path).draft is None
    path.write_text(f'{TEXT}\n[draft]\nmodel = "own.gguf"\n', encoding="utf-8")
    write(path, "draft:auto", draft=Path("/models/draft.gguf"))
    draft = read_preset(path).draft
    assert draft.model == "own.gguf"


@pytest.mark.parametrize(
    "text", ["name = ", 'name = "x"\nwrong = 1\n', 'name = "x"\nspeculation = 1']
)
def test_a_file_that_is_no_preset_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PresetError):
        write(path, "lookup:auto")
    assert path.read_text(encoding="utf-8") == text


def test_a_preset_is_found_by_its_name_or_path(path: Path, tmp_path: Path) -> None:
    assert preset_file("mine", tmp_path) == path
    assert preset_file("MINE", tmp_path) == path
    assert preset_file(str(path), tmp_path) == path
    assert preset_file("~nobody-of-this-name/x.toml", tmp_path).name == "x.toml"
    assert preset_file("new one", tmp_path) == tmp_path / "new-one.toml"


@pytest.mark.parametrize("name", ["../../x", "/tmp/zz", ""])
def test_what_is_no_name_is_no_target(name: str, tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="this is not a preset"):
        preset_file(name, tmp_path)


SHORT = "lookup:fixed:2"
FEW = ("--arm", SHORT, "--prompts", "3")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> AnsweringClient:
    client = AnsweringClient()

    @contextmanager
    def opened(*_: object) -> Iterator[BlockingClient]:
        yield loaded(client)

    monkeypatch.setattr(bench, "loaded_engine", opened)
    return client


@pytest.mark.parametrize(
    ("case", "typed", "preset"),
    [
        ("plain", (), ""),
        ("preset", ("--preset", "balanced"), "balanced"),
        ("threads", ("--threads", "1"), None),
        ("kv", ("--kv", "q8_0"), None),
        ("noise", (), None),
    ],
)
def test_a_speed_is_stored_with_its_preset_and_not_with_other_settings_or_noise(
    case: str, typed: tuple[str, ...], preset: str | None, home: Path, engine: AnsweringClient
) -> None:
    model = drafting_model(home / "models" / f"{case}.gguf", len(case))
    rates = cycle([1.0, 2.0] if case == "noise" else [1.0])

    def answer(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        *events, end = steady(request, settings)
        assert isinstance(end, Finished)
        stats = replace(end.stats, decode_s=end.stats.decode_s * next(rates))
        return [*events, replace(end, stats=stats)]

    engine.answer = answer
    assert run(["bench", str(model), *FEW, *typed, "--write", "mine"]) == 0
    speed = Speeds(paths.speeds_path()).of(model_identity(model))
    assert (None if speed is None else speed.preset) == preset
    assert (paths.presets_dir() / "mine.toml").exists() is (case != "noise")


def test_the_same_command_continues_its_file_and_another_one_is_refused(
    home: Path, engine: AnsweringClient, capsys: pytest.CaptureFixture[str]
) -> None:
    model = drafting_model(home / "models" / "tiny.gguf", 1)
    path = home / "all.json"
    command = ["bench", str(model), *FEW, "--json", str(path)]
    assert run([*command, "--prompt-set", "chat"]) == 0
    first, n_asked = read_results(path), len(engine.asked)
    assert len(first.prompts) == 3
    assert run([*command, "--prompt-set", "chat", "--prompt-set", "grounded"]) == 0
    assert read_results(path).prompts[:3] == first.prompts
    assert len(engine.asked) == 2 * n_asked
    for typed, difference in (
        (("--blocks", "2"), "n_blocks was 1 and is 2"),
        (("--kv", "q8_0"), "type_k was 'f16' and is 'q8_0'"),
        (("--set", "n_gpu_layers=0"), "n_gpu_layers was "),
        (("--set", "flash_attention=off"), "flash_attention was 'auto' and is 'off'"),
    ):
        assert run([*command, *typed]) == 1
        assert difference in capsys.readouterr().err
    assert len(read_results(path).prompts) == 6


def test_a_prompt_with_another_text_is_measured_again(home: Path, engine: AnsweringClient) -> None:
    model = drafting_model(home / "models" / "tiny.gguf", 1)
    prompts, path = home / "mine.jsonl", home / "all.json"
    command = ["bench", str(model), *FEW, "--prompt-set", str(prompts), "--json", str(path)]
    for text in ("One?", "Two?", "Two?"):
        prompts.write_text(f'{{"prompt": "{text}"}}\n', encoding="utf-8")
        assert run(command) == 0
    asked = [request.messages[0].content for request, _ in engine.asked]
    assert asked == 5 * ["One?"] + 5 * ["Two?"]


def test_a_speed_of_a_results_file_is_not_stored(home: Path, engine: AnsweringClient) -> None:
    model = drafting_model(home / "models" / "tiny.gguf", 1)
    command = ["bench", str(model), *FEW, "--json", str(home / "all.json")]
    assert run(command) == 0
    paths.speeds_path().unlink()
    assert run(command) == 0
    assert Speeds(paths.speeds_path()).of(model_identity(model)) is None


@pytest.mark.parametrize("interrupted_at", [9, 14])
def test_ctrl_c_keeps_whole_prompts(
    interrupted_at: int, home: Path, engine: AnsweringClient, capsys: pytest.CaptureFixture[str]
) -> None:
    model = drafting_model(home / "models" / "tiny.gguf", 1)

    def answer(request: GenerationRequest, settings: SpeculationSettings) -> Sequence[Event]:
        if len(engine.asked) == interrupted_at:
            raise KeyboardInterrupt
        return steady(request, settings)

    engine.answer = answer
    path = home / "all.json"
    arguments = ("--prompt-set", "chat", "--json", str(path), "--write", "mine")
    assert run(["bench", str(model), *FEW, *arguments]) == 130
    assert len(read_results(path).prompts) == interrupted_at // 5
    assert "chat at temperature 0" in capsys.readouterr().out
    assert not (paths.presets_dir() / "mine.toml").exists()


@pytest.mark.parametrize(
    ("ratios", "reason"),
    [([1.5] * 6, ""), ([1.5] * 5, "5 of the 6 blocks"), ([], "no prompt can be used")],
)
def test_a_recommendation_is_written_where_there_is_one(
    ratios: list[float], reason: str, tmp_path: Path
) -> None:
    made = [record({SHORT: ratios})] if ratios else []
    path = tmp_path / "mine.toml"
    found = write_recommendation(path, results(*made, arms=[SHORT]), CONFIGURATION, "mine")
    assert reason in found
    assert path.exists() == (not reason)
    if not reason:
        assert read_preset(path).model == str(CONFIGURATION.model_path)
