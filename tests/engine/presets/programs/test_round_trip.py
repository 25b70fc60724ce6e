"""What leaves for another program comes back as it was, but for what a remark names."""

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings

from engine.configuration import (
    Configuration,
    PredictorName,
    SpeculationSettings,
)
from engine.presets.library import preset_of
from engine.presets.preset import Preset
from engine.presets.programs.base import ExportError, ExportRequest, Format
from engine.presets.programs.formats import FORMATS, read_text
from tests.engine.presets.strategies import CONFIGURATIONS

WITH_FLAGS = [each for each in FORMATS.values() if each.starts_server]


def as_llama_server_has_it(configuration: Configuration) -> Configuration:
    """The configuration without what its flags cannot say; each of it is a remark."""
    usual, said = SpeculationSettings(), configuration.speculation
    match said.predictor:
        case PredictorName.OFF | PredictorName.CUSTOM:
            kept = SpeculationSettings(predictor=PredictorName.OFF)
        case PredictorName.LOOKUP | PredictorName.SUFFIX | PredictorName.COMBINED:
            length = min(said.n_draft_of_server, 16)
            kept = SpeculationSettings(
                predictor=PredictorName.LOOKUP,
                lookup_pattern_min=said.lookup_pattern_min,
                n_draft=min(usual.n_draft, length),
                n_draft_max=length,
            )
        case PredictorName.DRAFT:
            kept = SpeculationSettings(
                predictor=PredictorName.DRAFT,
                n_draft=said.n_draft,
                n_draft_max=max(said.n_draft, usual.n_draft_max),
                draft_min_tokens=min(said.draft_min_tokens, said.n_draft),
                draft_min_confidence=said.draft_min_confidence,
            )
    sampling = replace(configuration.sampling, stop_tokens=())
    same = replace(configuration, speculation=kept, sampling=sampling)
    if configuration.n_mtp_draft and said.predictor is PredictorName.DRAFT:
        off = SpeculationSettings(predictor=PredictorName.OFF)
        same = replace(same, speculation=off, draft=None)
    return same


def through(format_name: str, configuration: Configuration) -> Preset:
    request = ExportRequest(configuration, name="there and back")
    return read_text(FORMATS[format_name].render(request).text, name="back").preset


@pytest.mark.parametrize("format_name", [each.name for each in WITH_FLAGS])
@given(configuration=CONFIGURATIONS)
@settings(max_examples=30)
def test_a_configuration_comes_back_from_every_wrapping_of_llama_server(
    format_name: str, configuration: Configuration
) -> None:
    expected = preset_of(as_llama_server_has_it(configuration), "back")
    try:
        found = through(format_name, configuration)
    except ExportError:
        assume(False)
        raise
    assert found == expected


EVERYWHERE = [each.name for each in FORMATS.values()]
DRAFTING = ("n_draft", "draft_min_tokens", "draft_min_confidence")
"""What other programs have beside kvchat; the rest is for predictors that only kvchat has."""
WORDS = {"predictor": ("the predictor is", "the draft model")}
"""Fields of a preset by the words that a remark has for them, where they are others."""


def fields_of(preset: Preset) -> dict[str, object]:
    """What another program can say, field by field."""
    known = preset.model_dump()
    speculation, sampling = known.pop("speculation"), known.pop("sampling")
    least = min(speculation["draft_min_tokens"], speculation["n_draft"])
    drafting = {**{key: speculation[key] for key in DRAFTING}, "draft_min_tokens": least}
    if known["mmproj"] is None:
        known["mmproj_offload"] = True  # of no projector
    return {**known, **sampling, **drafting, "predictor": speculation["predictor"]}


def unsaid(configuration: Configuration, form: Format) -> list[str]:
    """The fields that neither come back from a format nor are named in a remark of it."""
    request = ExportRequest(configuration, name="there and back")
    exported = form.render(request)
    found = read_text(exported.text, name="back", model=str(configuration.model_path))
    before, after = (fields_of(each) for each in (preset_of(configuration, "back"), found.preset))
    differing = {name for name in before if before[name] != after[name]}
    if "predictor" in differing or before["predictor"] != PredictorName.DRAFT:
        differing -= {*DRAFTING}
    remarks = " ".join(exported.remarks)
    return sorted(
        name for name in differing if not any(word in remarks for word in WORDS.get(name, (name,)))
    )


@pytest.mark.parametrize("format_name", EVERYWHERE)
@given(configuration=CONFIGURATIONS)
@settings(max_examples=25)
def test_every_field_comes_back_or_is_named_in_a_remark(
    format_name: str, configuration: Configuration
) -> None:
    try:
        lost = unsaid(configuration, FORMATS[format_name])
    except ExportError:
        assume(False)
        raise
    assert lost == []


COUNTS = ("n_threads", "n_gpu_layers", "n_mtp_draft")
COMES_BACK = {
    "lm-studio": (
        "n_ctx", "n_batch", "n_ubatch", "n_slots", "kv_unified", "offload_kqv", "n_threads",
        "use_mmap", "n_mtp_draft",
    ),
    "ollama": ("n_ubatch", "n_slots", "main_gpu", "lora", *COUNTS),
    "koboldcpp": (
        "n_ctx", "swa_full", "offload_kqv", "n_cpu_moe", "tensor_split", "tensor_overrides",
        "mmproj", "lora", *COUNTS,
    ),
    "llama-cpp-python": (
        "n_ctx", "n_batch", "n_ubatch", "type_k", "type_v", "main_gpu", "split_mode",
        "tensor_split", "offload_kqv", "n_threads", "n_threads_batch", "use_mmap", "n_gpu_layers",
        "mmproj",
    ),
}  # fmt: skip
"""Fields that each program has: a remark does not excuse their loss."""


@pytest.mark.parametrize("format_name", COMES_BACK)
@given(configuration=CONFIGURATIONS)
@settings(max_examples=25)
def test_a_program_gives_back_every_field_that_it_has(
    format_name: str, configuration: Configuration
) -> None:
    unscaled = (replace(each, scale=1.0) for each in configuration.adapters)
    leaving = replace(configuration, adapters=tuple(unscaled))
    found, planned = through(format_name, leaving), preset_of(leaving, "back")
    names = COMES_BACK[format_name]
    assert {name: getattr(found, name) for name in names} == {
        name: getattr(planned, name) for name in names
    }
    if format_name != "llama-cpp-python":  # which takes it with each request
        assert found.sampling.temperature == planned.sampling.temperature
        assert found.sampling.min_p == planned.sampling.min_p
