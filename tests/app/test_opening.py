"""Who drafts when a model is opened."""

from pathlib import Path

import pytest

from app.opening import configure
from app.settings import Settings
from engine.configuration import ControllerName, PredictorName
from engine.presets.preset import parse_preset

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
    cache = {"slots": 3, "cells": "shared"}
    three = configure(starter_path, None, None, Settings.model_validate({"cache": cache}))
    assert (one.n_slots, one.kv_unified) == (1, False)
    assert (three.n_slots, three.kv_unified) == (3, True)
    assert three.n_ctx == 3 * one.n_ctx  # of all slots together


def test_a_preset_says_so_itself(starter_path: Path) -> None:
    settings = Settings.model_validate({"cache": {"slots": 3}})
    rules = parse_preset('name = "x"\nn_slots = 2', "x")
    assert configure(starter_path, None, rules, settings).n_slots == 2
