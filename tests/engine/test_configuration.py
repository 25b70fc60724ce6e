"""What a configuration comes to, and which values its settings may have."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from engine.configuration import (
    MAX_DRAFT,
    Configuration,
    DraftConfiguration,
    EngineSettings,
    SamplingSettings,
    check_settings,
)
from engine.errors import PresetError
from engine.presets.preset import Preset


@pytest.mark.parametrize(
    ("n_batch", "n_ubatch", "expected"),
    [(2048, 512, 512), (256, 512, 256), (2048, 1, 1 + MAX_DRAFT), (8, 8, 1 + MAX_DRAFT)],
)
def test_the_longest_draft_fits_a_batch_however_small_ubatches_are(
    tmp_path: Path, n_batch: int, n_ubatch: int, expected: int
) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    wanted = Configuration(model, n_ctx=512, n_batch=n_batch, n_ubatch=n_ubatch)
    assert wanted.n_batch_of_kvchat == expected


@pytest.mark.parametrize(("n_slots", "n_rows"), [(1, 1 + MAX_DRAFT), (40, 40)])
def test_a_batch_has_a_row_for_each_slot_or_llama_cpp_would_end_the_process(
    n_slots: int, n_rows: int
) -> None:
    settings = Configuration(Path("m.gguf"), 8192, n_ubatch=8, n_slots=n_slots)
    assert settings.n_rows == n_rows
    assert settings.n_batch_of_kvchat >= n_rows


def test_the_draft_has_one_sequence_however_many_chats_the_target_holds(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    wanted = Configuration(
        model, 8192, n_slots=4, kv_unified=True, draft=DraftConfiguration(model, n_ctx=1024)
    )
    own = wanted.of_draft("kvchat")
    assert own is not None
    assert (own.n_slots, own.n_ctx) == (1, 1024)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 10.5}, "temperature is 10.5, allowed: 0.0 to 10.0"),
        ({"top_p": 0.0}, "top_p is 0.0, allowed: above 0.0, to 1.0"),
        ({"min_p": 1.0}, "min_p is 1.0, allowed: 0.0 to below 1.0"),
        ({"top_k": -1}, "top_k is -1, allowed: 0 or more"),
        ({"repetition_penalty": math.nan}, "repetition_penalty is nan"),
    ],
)
def test_a_value_outside_its_bounds_is_refused_with_them(
    changes: dict[str, float], message: str
) -> None:
    check_settings(usual := SamplingSettings())
    with pytest.raises(PresetError, match=f"^{re.escape(message)}"):
        check_settings(replace(usual, **changes))  # type: ignore[arg-type]  # by name


def test_a_preset_has_every_setting_of_the_engine_with_the_same_default() -> None:
    usual, preset = Configuration(Path("m.gguf"), 512), Preset(name="usual")
    assert {each.name for each in fields(EngineSettings)} <= {*Preset.model_fields}
    assert preset.shared_fields() == usual.shared_fields()
