"""A recommendation in a preset's file."""

from pathlib import Path

import pytest

from app.bench.policies import parse_policy
from app.bench.verdict import find_target, write_policy
from engine.configuration import ControllerName, PredictorName
from engine.errors import PresetError
from engine.presets.preset import read_preset

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


def write(path: Path, policy: str | None, draft: Path | None = None) -> None:
    parsed = None if policy is None else parse_policy(policy)
    write_policy(path, parsed, model=MODEL, draft=draft, name="Mine")


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


def test_a_length_stays_where_the_rule_has_none(path: Path) -> None:
    write(path, "combined:auto")
    rules = read_preset(path).speculation
    assert (rules.controller, rules.n_draft) == (ControllerName.AUTO, 5)


def test_no_speculation_is_written_too(path: Path) -> None:
    write(path, None)
    assert read_preset(path).speculation.predictor is PredictorName.OFF


def test_a_preset_that_is_not_there_is_made_for_the_model(tmp_path: Path) -> None:
    path = tmp_path / "presets" / "mine.toml"
    write(path, "draft:fixed:4", draft=Path("/models/draft.gguf"))
    preset = read_preset(path)
    assert (preset.name, preset.model) == ("Mine", str(MODEL))
    assert preset.draft is not None
    assert preset.draft.model == "/models/draft.gguf"


def test_a_draft_model_is_named_only_where_it_takes_part_and_none_is_named(path: Path) -> None:
    write(path, "lookup:fixed:2", draft=Path("/models/draft.gguf"))
    assert read_preset(path).draft is None
    path.write_text(f'{TEXT}\n[draft]\nmodel = "own.gguf"\n', encoding="utf-8")
    write(path, "draft:auto", draft=Path("/models/draft.gguf"))
    draft = read_preset(path).draft
    assert draft is not None
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
    assert find_target("mine", tmp_path) == path
    assert find_target("MINE", tmp_path) == path
    assert find_target(str(path), tmp_path) == path
    assert find_target("new one", tmp_path) == tmp_path / "new-one.toml"


@pytest.mark.parametrize("name", ["../../x", "/tmp/zz", ""])
def test_what_is_no_name_is_no_target(name: str, tmp_path: Path) -> None:
    with pytest.raises(PresetError, match="this is not a preset"):
        find_target(name, tmp_path)
