"""Speculation leaves for llama-server so that it drafts there too."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import (
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
)
from engine.presets.programs.llama_server import arguments, remarks

PLAIN = Configuration(Path("/m.gguf"), 4096)


def looking_up(**changes: object) -> Configuration:
    speculation = SpeculationSettings(predictor=PredictorName.LOOKUP, **changes)  # type: ignore[arg-type]  # by name
    return replace(PLAIN, speculation=speculation)


def value(configuration: Configuration, flag: str) -> str:
    words = arguments(configuration)
    return words[words.index(flag) + 1]


def test_a_fixed_length_shorter_than_the_pattern_is_raised_and_said() -> None:
    short = looking_up(controller=ControllerName.FIXED, n_draft=2, lookup_pattern_min=6)
    assert value(short, "--spec-ngram-simple-size-m") == "6"
    assert any("drafts 6 tokens, not 2" in remark for remark in remarks(short))
    long = looking_up(controller=ControllerName.FIXED, n_draft=9, lookup_pattern_min=6)
    assert value(long, "--spec-ngram-simple-size-m") == "9"
    assert remarks(long) == []


@pytest.mark.parametrize("predictor", [PredictorName.OFF, PredictorName.LOOKUP])
def test_a_draft_model_that_does_not_draft_stays_behind_aloud(predictor: PredictorName) -> None:
    speculation = replace(PLAIN.speculation, predictor=predictor)
    idle = replace(PLAIN, draft=DraftConfiguration(Path("/d.gguf"), 512), speculation=speculation)
    assert "--model-draft" not in arguments(idle)
    assert any("d.gguf is left out" in remark for remark in remarks(idle))


def test_the_models_own_head_drafts_beside_the_look_up() -> None:
    both = replace(looking_up(), n_mtp_draft=2)
    assert value(both, "--spec-type") == "draft-mtp,ngram-simple"
    assert value(both, "--spec-draft-n-max") == "2"
    assert arguments(both).count("--spec-type") == 1
