"""Costs saved between runs: their key, and damaged files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import (
    Adapter,
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
    TensorOverride,
)
from engine.errors import ModelFileError
from engine.speculation.cost_profile import (
    SavedCosts,
    profile_key,
)
from engine.speculation.costs import CostProfile, KnownCost
from tests.support.drafting_models import drafting_model

COSTS = CostProfile(((1, 1.0), (2, 1.6), (8, 4.5)), {"suffix": KnownCost(0.002, 0.0005)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "costs.json"


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return Configuration(drafting_model(tmp_path / "target.gguf", 4), n_ctx=512)


def with_draft(configuration: Configuration, path: Path) -> Configuration:
    return replace(configuration, draft=DraftConfiguration(path, n_ctx=512))


def test_a_profile_replaces_its_former_and_no_other(path: Path) -> None:
    newer = replace(COSTS, drafting={})
    SavedCosts(path, "a").write(COSTS)
    SavedCosts(path, "b").write(COSTS)
    SavedCosts(path, "a").write(newer)
    assert (SavedCosts(path, "a").read(), SavedCosts(path, "b").read()) == (newer, COSTS)


def test_without_a_path_nothing_is_saved_and_no_model_is_read() -> None:
    saved = SavedCosts.of(Configuration(Path("no such model"), n_ctx=512), None)
    saved.write(COSTS)
    assert saved.read() is None


def test_where_nothing_can_be_written_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "costs.json", tmp_path / "folder"):
        SavedCosts(path, "a").write(COSTS)
        assert SavedCosts(path, "a").read() is None
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"version": 4}',
        '{"version": 4, "profiles": []}',
        '{"version": 4, "profiles": {"a": 3}}',
        "\N{PILE OF POO}",
    ],
    ids=["empty", "cut", "list", "deep", "bare", "no profiles", "number", "odd"],
)
def test_a_broken_file_is_ignored_and_replaced(text: str, path: Path) -> None:
    path.parent.mkdir()
    path.write_text(text, encoding="utf-16" if text == "\N{PILE OF POO}" else "utf-8")
    assert SavedCosts(path, "a").read() is None
    SavedCosts(path, "a").write(COSTS)
    assert SavedCosts(path, "a").read() == COSTS


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("points", None),
        ("points", [[1, 2, 3]]),
        ("points", [[0, 1.0]]),
        ("points", [[2, 1000.0]]),
        ("points", [[18, 2.0]]),
        ("points", [[float("inf"), 1.0]]),
        ("drafting", []),
        ("drafting", {"suffix": {"ask": 0.0}}),
        ("drafting", {"suffix": {"ask": 0.0, "step": -0.1}}),
        ("drafting", {"suffix": {"ask": float("nan"), "step": 0.0}}),
    ],
)
def test_numbers_that_cannot_be_costs_are_not_believed(
    part: str, value: object, path: Path
) -> None:
    SavedCosts(path, "a").write(COSTS)
    known = json.loads(path.read_text())
    known["profiles"]["a"][part] = value
    path.write_text(json.dumps(known))
    assert SavedCosts(path, "a").read() is None


def test_costs_are_those_of_a_configuration(path: Path, configuration: Configuration) -> None:
    SavedCosts.of(configuration, path).write(COSTS)
    assert SavedCosts.of(configuration, path).read() == COSTS
    assert SavedCosts.of(replace(configuration, n_threads=3), path).read() is None


def test_who_drafts_how_tokens_are_drawn_and_names_of_files_change_no_cost(
    tmp_path: Path, configuration: Configuration
) -> None:
    configuration = with_draft(configuration, drafting_model(tmp_path / "draft.gguf", 1))
    key = profile_key(configuration)
    speculation = SpeculationSettings(PredictorName.OFF, controller=ControllerName.FIXED)
    moved = replace(
        with_draft(configuration, (tmp_path / "draft.gguf").rename(tmp_path / "small.gguf")),
        model_path=(tmp_path / "target.gguf").rename(tmp_path / "large.gguf"),
        speculation=speculation,
        sampling=SamplingSettings(temperature=0.8),
    )
    assert profile_key(moved) == key


def test_costs_are_separate_by_model_draft_settings_and_machine(
    tmp_path: Path, configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = drafting_model(tmp_path / "small.gguf", 1)
    other = drafting_model(tmp_path / "other.gguf", 2)
    keys = [
        profile_key(each)
        for each in (
            configuration,
            replace(configuration, model_path=small),
            with_draft(configuration, small),
            with_draft(configuration, other),
            replace(configuration, n_gpu_layers=0),
            replace(configuration, type_k="q8_0"),
            replace(configuration, use_extra_buffers=False),
            replace(configuration, tensor_overrides=(TensorOverride("exps"),)),
            replace(configuration, tensor_overrides=(TensorOverride("exps", "GPU 0"),)),
            replace(configuration, adapters=(Adapter(small),)),
        )
    ]
    monkeypatch.setattr("engine.builds.platform.node", lambda: "another machine")
    keys.append(profile_key(configuration))
    monkeypatch.setattr("engine.builds.os.cpu_count", lambda: 1234)
    keys.append(profile_key(configuration))
    monkeypatch.setattr("engine.speculation.cost_profile.installed_build", lambda _: "another")
    keys.append(profile_key(configuration))
    assert len(set(keys)) == len(keys)


def test_costs_of_a_model_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gone\.gguf"):
        SavedCosts.of(Configuration(tmp_path / "gone.gguf", n_ctx=512), tmp_path / "costs.json")


def test_a_setting_that_costs_nothing_leaves_the_costs_found(configuration: Configuration) -> None:
    key = profile_key(configuration)
    assert profile_key(replace(configuration, n_ctx=1024, n_batch=512)) == key
    assert profile_key(replace(configuration, kv_trace=Path("trace.jsonl"))) == key
