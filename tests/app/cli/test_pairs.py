"""`kvchat pairs`, as text and as JSON."""

import json
from pathlib import Path

import pytest

from app.cli.main import run
from engine.model.starter import STARTER
from tests.app.cli.conftest import json_of, refusal, text_of
from tests.support.drafting_models import TOKENS, drafting_model


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    drafting_model(folder / "target.gguf", 40)
    drafting_model(folder / "small.gguf", 1)
    drafting_model(folder / "large.gguf", 80)
    drafting_model(folder / "other.gguf", 1, (*TOKENS[:77], "odd", *TOKENS[78:]))
    monkeypatch.setenv("KVCHAT_MODELS", str(folder))
    return folder


def test_text_names_the_best_with_its_arguments_and_why_others_are_not(models: Path) -> None:
    text = text_of("pairs", "target", "--on", "gpu")
    assert "never load it" in text
    assert "large: the draft model reads 2.0 times as many bytes per token as the target" in text
    assert "other: token 77 is 'token 77' in the target and 'odd' in the draft" in text
    assert "kvchat target --draft small" in text
    server = next(line for line in text.splitlines() if "llama-server" in line)
    assert f"-m {models / 'target.gguf'} --spec-type draft-simple" in server
    assert f"--model-draft {models / 'small.gguf'}" in server


def test_json_has_every_candidate_with_its_figures(models: Path) -> None:
    found = json_of("pairs", "target", "--on", "gpu")
    assert (found["target"], found["problem"], found["best"]) == ("target", None, "small")
    assert [each["name"] for each in found["drafts"]] == ["small", "large"]
    small = found["drafts"][0]
    assert small["path"] == str(models / "small.gguf")
    low, high = (small["advice"][name] for name in ("low", "high"))
    assert 1 < low["factor"] < high["factor"]
    assert low["n_draft"] > 0
    unsuitable = found["unsuitable"][0]["advice"]
    assert (unsuitable["worth"], unsuitable["low"]) == ("cannot draft", None)
    assert found["look_up"]["high"]["factor"] > 1
    assert found["llama_server"][:2] == ["--spec-type", "draft-simple"]


def test_folders_that_are_named_are_searched_and_no_others(models: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    drafting_model(elsewhere / "alone.gguf", 1)
    target = str(models / "target.gguf")
    found = json_of("pairs", target, "--folder", str(elsewhere))
    assert [each["name"] for each in found["drafts"]] == ["alone"]
    assert found["unsuitable"] == []


def test_the_starter_is_found_in_the_usual_folders(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drafting_model(models / STARTER.file_name, 40)
    assert run(["pairs", "starter", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["target"] == Path(STARTER.file_name).stem


def test_a_model_of_the_catalogue_has_drafts_to_fetch() -> None:
    text = text_of("pairs", "llama-3.1-70b", "--on", "gpu")
    assert "No model on this machine can draft for llama-3.1-70b" in text
    assert "meta-llama/Llama-3.2-1B" in text


def test_a_recurrent_target_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pairs", "falcon-mamba-7b"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "recurrent" in line


def test_an_unknown_model_is_refused() -> None:
    assert "nonsense" in refusal("pairs", "nonsense")


def test_a_name_of_two_lines_is_one_row(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "small.gguf").rename(models / "sm\nall\x1b[2J.gguf")
    assert run(["pairs", "target", "--on", "gpu"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows[:2] == ["draft", "sm all␛[2J"]
