"""A new name of a closed set is in every table, or a test names the table that lacks it."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from app.cli.cache_quality import ALL_TYPES
from app.widgets.panels import PANELS
from engine.configuration import (
    Configuration,
    DraftConfiguration,
    KVTypeName,
    PredictorName,
    SpeculationSettings,
)
from engine.events import PanelName
from engine.memory.kv_cache import KV_TYPES, is_quantized
from engine.policy.pairs import COARSENESS
from engine.presets.export import Exported, ExportRequest
from engine.presets.formats import FORMATS

NAMES = get_args(KVTypeName)
CONFIGURATION = Configuration(Path("/m/a.gguf"), n_ctx=4096, flash_attention="on")
DRAFT = DraftConfiguration(Path("/m/draft.gguf"), 4096)


@pytest.mark.parametrize(
    ("table", "known"),
    [
        ("engine.memory.kv_cache.KV_TYPES", KV_TYPES),
        ("engine.policy.pairs.COARSENESS", COARSENESS),
        ("app.cli.cache_quality.ALL_TYPES", {*ALL_TYPES, "f32"}),  # which f16 stands for
    ],
)
def test_every_kv_type_is_in_every_table(table: str, known: Collection[str]) -> None:
    assert set(NAMES) == set(known), f"{table} and KVTypeName differ"


def exported(format_name: str, configuration: Configuration) -> tuple[str, tuple[str, ...]]:
    """What the program gets, without comments, and the reported differences."""
    found: Exported = FORMATS[format_name].render(ExportRequest(configuration))
    texts = (found.text, *found.companions.values())
    lines = (line for text in texts for line in text.splitlines())
    text = "\n".join(line for line in lines if not line.lstrip().startswith(("#", ";", "//")))
    return text, found.differences


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kv_type", NAMES)
def test_every_kv_type_reaches_every_program_or_is_reported_as_missing(
    name: str, kv_type: str
) -> None:
    assert kv_type in KV_TYPES
    values = {"type_k": kv_type, "type_v": kv_type}
    typed = replace(CONFIGURATION, **values)  # type: ignore[arg-type]  # a name of the set
    text, remarks = exported(name, typed)
    plain, _ = exported(name, CONFIGURATION)
    if is_quantized(typed.type_k):
        assert text != plain or any(kv_type in remark for remark in remarks)


@pytest.mark.parametrize("name", FORMATS)
def test_no_difference_of_drafts_is_reported_without_a_predictor(name: str) -> None:
    _, remarks = exported(name, drafting(PredictorName.OFF))
    assert not any("draft" in remark or "predictor" in remark for remark in remarks)


def drafting(predictor: PredictorName) -> Configuration:
    speculation = SpeculationSettings(predictor=predictor)
    draft = DRAFT if predictor is PredictorName.DRAFT else None
    return replace(CONFIGURATION, speculation=speculation, draft=draft)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("predictor", [each for each in PredictorName if each != "off"])
def test_every_predictor_reaches_every_program_or_is_reported_as_missing(
    name: str, predictor: PredictorName
) -> None:
    assert exported(name, drafting(predictor)) != exported(name, drafting(PredictorName.OFF))


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_without_a_predictor_has_no_draft_settings(name: str) -> None:
    _, remarks = exported(name, drafting(PredictorName.OFF))
    assert not [remark for remark in remarks if "in every round" in remark]


def test_every_panel_has_its_content() -> None:
    assert set(PANELS) == set(get_args(PanelName))
