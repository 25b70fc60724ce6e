"""How an arm is written and read, and which ones a benchmark compares."""

import pytest

from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.experiment.arm import (
    PLAIN,
    ExperimentError,
    arm_of,
    arms_for,
    check_available,
    distinct,
    drafting_arm,
    parse_arm,
)

BASE = SpeculationSettings(n_draft=3, lookup_pattern_min=4)
USUAL = ("off", "lookup", "suffix", "combined")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("off", "plain"),
        ("plain", "plain"),
        ("lookup", "lookup:auto"),
        ("lookup:fixed", "lookup:fixed:3"),
        (" Combined:Auto", "combined:auto"),
        ("draft:fixed:12", "draft:fixed:12"),
    ],
)
def test_an_arm_changes_only_what_its_name_reports(text: str, name: str) -> None:
    arm = parse_arm(text, BASE)
    assert arm.name == name
    assert parse_arm(arm.name) == arm
    settings = arm.of(BASE)
    assert settings.lookup_pattern_min == 4
    assert arm_of(settings) == arm


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loookup", "use one of off, lookup"),
        ("", "there is no predictor"),
        ("mtp:auto", "cannot run"),
        ("lookup:fast", "fixed:LENGTH"),
        ("lookup:", "fixed:LENGTH"),
        ("custom:module:Class", "there is no predictor"),
        ("lookup:fixed:40", "fixed:LENGTH"),
        ("lookup:fixed:0", "fixed:LENGTH"),
        ("lookup:fixed:x", "fixed:LENGTH"),
        ("lookup:auto:3", "fixed:LENGTH"),
        ("lookup:fixed:4:5", "fixed:LENGTH"),
    ],
)
def test_an_unknown_arm_is_refused_with_those_that_exist(text: str, words: str) -> None:
    with pytest.raises(ExperimentError, match=words):
        parse_arm(text, BASE)


def test_a_chat_without_drafts_is_compared_with_all_predictors() -> None:
    assert drafting_arm(BASE).of(BASE) == BASE
    off = SpeculationSettings(predictor=PredictorName.OFF)
    assert drafting_arm(off).changes == {
        "predictor": PredictorName.COMBINED, "controller": ControllerName.AUTO,
    }  # fmt: skip
    assert arm_of(off) is PLAIN


def test_a_benchmark_compares_what_the_model_can_use() -> None:
    names = [arm.name for arm in arms_for(USUAL, BASE)]
    assert names == ["suffix:auto", *(f"{name}:fixed:{n}" for name in ("lookup", "suffix")
                                      for n in (2, 4, 8))]  # fmt: skip
    assert arms_for((*USUAL, "draft"), BASE)[0].name == "combined:auto"
    with pytest.raises(ExperimentError, match="nothing to compare"):
        arms_for(("off",), BASE)


def test_a_predictor_that_the_model_lacks_is_refused() -> None:
    check_available([PLAIN, parse_arm("lookup")], USUAL)
    with pytest.raises(ExperimentError, match=r"draft cannot be used .* --draft"):
        check_available([parse_arm("draft")], USUAL)


def test_an_arm_that_is_named_twice_runs_once() -> None:
    assert len(distinct([parse_arm("lookup"), parse_arm("lookup:auto"), PLAIN])) == 2
