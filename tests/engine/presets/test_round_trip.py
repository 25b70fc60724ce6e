"""A configuration that is exported and imported again is the same, but for the named differences.

`.venv/bin/python -m tests.engine.presets.test_round_trip` writes the golden files again.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from engine.presets.export import ExportError, ExportRequest
from engine.presets.fields import flat
from engine.presets.formats import FORMATS, read_text
from engine.presets.library import preset_of
from engine.presets.llama_server import arguments, differences
from tests.support.drawn_configurations import CONFIGURATIONS

GOLDEN = Path(__file__).with_name("golden")
PLAIN = Configuration(Path("/models/m.gguf"), 4096)
EVERYTHING = Configuration(
    model_path=Path("/models/it's a model.gguf"),
    n_ctx=16384,
    n_batch=1024,
    n_ubatch=256,
    type_k="q8_0",
    type_v="q4_0",
    flash_attention="on",
    n_gpu_layers=20,
    n_slots=2,
    swa_full=True,
    offload_kqv=False,
    split_mode="none",
    main_gpu=1,
    n_cpu_moe=7,
    tensor_split=(3.0, 1.0),
    tensor_overrides=(TensorOverride("ffn_up_exps", "GPU 1"), TensorOverride("output")),
    mmproj_path=Path("/models/mmproj $HOME.gguf"),
    adapters=(Adapter(Path("/models/lora.gguf"), 0.5),),
    n_threads=6,
    n_threads_batch=12,
    use_mmap=False,
    draft=DraftConfiguration(Path("/models/draft.gguf"), 4096, type_k="q8_0"),
    speculation=SpeculationSettings(PredictorName.COMBINED, ControllerName.FIXED, n_draft=6),
    sampling=SamplingSettings(temperature=0.7, top_k=40, top_p=0.9, min_p=0.05),
)


def golden(format_name: str) -> str:
    """The files of an export with every setting."""
    request = ExportRequest(EVERYTHING, name="all of it", warnings=("it is tight",))
    exported = FORMATS[format_name].render(request)
    files = exported.companions.items()
    parts = [exported.text, *(f"--- {name}\n{text}" for name, text in files)]
    if not FORMATS[format_name].has_comments:
        parts += [f"--- differences\n{line}\n" for line in exported.differences]
    return "".join(parts)


@pytest.mark.parametrize("format_name", FORMATS)
def test_an_export_is_the_golden_file(format_name: str) -> None:
    assert golden(format_name) == (GOLDEN / f"{format_name}.txt").read_text(encoding="utf-8")


KVCHAT_ONLY = {
    "n_draft_max", "lookup_pattern_min", "lookup_pattern_max", "lookup_length_min",
    "lookup_length_max", "suffix_min_confidence", "verification", "bonus_token",
}  # fmt: skip
"""Settings of kvchat's own predictors."""
IN_REQUESTS = {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}


def subject(field: str, before: dict[str, object], after: dict[str, object]) -> str | None:
    """How the difference of a field begins; None if another difference covers it."""
    table, _, name = field.rpartition(".")
    is_unused = name == "mmproj_offload" and before["mmproj"] is None
    if name in KVCHAT_ONLY or field in ("name", "model", "draft") or is_unused:
        return None
    drafts = before["speculation.predictor"] in ("draft", "combined") and "draft.model" in after
    if field == "draft.model" or (table == "draft" and "draft.model" not in after):
        return "the draft model" if field == "draft.model" and "draft.model" not in after else None
    if name == "predictor":
        return "the predictor is"
    if name == "controller" or (table == "speculation" and not drafts):
        return None
    if name == "draft_min_tokens" and after[field] == before["speculation.n_draft"]:
        return None  # no more than the draft has
    return f"the draft's {name} is" if table == "draft" else f"{name} is"


@pytest.mark.parametrize("format_name", FORMATS)
@given(configuration=CONFIGURATIONS)
@settings(max_examples=50)
def test_every_field_comes_back_or_is_named_once(
    format_name: str, configuration: Configuration
) -> None:
    try:
        exported = FORMATS[format_name].render(ExportRequest(configuration, name="there"))
    except ExportError:
        return
    found = read_text(exported.text, name="back", model=str(configuration.model_path)).preset
    before, after = flat(preset_of(configuration, "back").model_dump()), flat(found.model_dump())
    for field, value in before.items():
        if value == after.get(field) or (start := subject(field, before, after)) is None:
            continue
        if format_name == "llama-cpp-python" and field.rpartition(".")[2] in IN_REQUESTS:
            start = "sampling ("
        lines = [line for line in exported.differences if line.startswith(start)]
        assert len(lines) == 1, (field, value, after.get(field), exported.differences)


COUNTS = ("n_threads", "n_gpu_layers", "n_mtp_draft")
COMES_BACK = {
    "llama-server": ("n_ctx", "n_slots", "type_k", "type_v", "tensor_overrides", "rpc_workers",
                     "lora", "use_mmap", *COUNTS),
    "lm-studio": ("n_ctx", "n_batch", "n_ubatch", "n_slots", "kv_unified", "offload_kqv",
                  "n_threads", "use_mmap", "n_mtp_draft"),
    "ollama": ("n_ubatch", "n_slots", "main_gpu", "lora", *COUNTS),
    "koboldcpp": ("n_ctx", "swa_full", "offload_kqv", "n_cpu_moe", "tensor_split",
                  "tensor_overrides", "mmproj", "lora", *COUNTS),
    "llama-cpp-python": ("n_ctx", "n_batch", "n_ubatch", "type_k", "type_v", "main_gpu",
                         "split_mode", "tensor_split", "offload_kqv", "n_threads",
                         "n_threads_batch", "use_mmap", "n_gpu_layers", "mmproj"),
}  # fmt: skip
"""Fields that each program has: naming them does not excuse their loss."""


@pytest.mark.parametrize("format_name", COMES_BACK)
@given(configuration=CONFIGURATIONS)
@settings(max_examples=25)
def test_a_program_gives_back_every_field_that_it_has(
    format_name: str, configuration: Configuration
) -> None:
    unscaled = tuple(replace(each, scale=1.0) for each in configuration.adapters)
    leaving = replace(configuration, adapters=unscaled)
    text = FORMATS[format_name].render(ExportRequest(leaving)).text
    found, planned = read_text(text).preset, preset_of(leaving, "back")
    for name in COMES_BACK[format_name]:
        assert getattr(found, name) == getattr(planned, name), name


def speculating(predictor: PredictorName, **changes: object) -> Configuration:
    speculation = SpeculationSettings(predictor, **changes)  # type: ignore[arg-type]  # by name
    return replace(PLAIN, speculation=speculation)


def flag(configuration: Configuration, name: str) -> str:
    words = arguments(configuration)
    assert words.count(name) == 1
    return words[words.index(name) + 1]


def test_speculation_types_are_chained_and_none_is_written() -> None:
    lookup = speculating(PredictorName.LOOKUP)
    combined = replace(speculating(PredictorName.COMBINED), draft=EVERYTHING.draft)
    assert flag(speculating(PredictorName.OFF), "--spec-type") == "none"
    assert flag(lookup, "--spec-type") == "ngram-simple"
    assert flag(combined, "--spec-type") == "ngram-simple,draft-simple"
    drafting = replace(speculating(PredictorName.DRAFT), draft=EVERYTHING.draft)
    assert flag(drafting, "--spec-type") == "draft-simple"
    assert flag(drafting, "--model-draft") == "/models/draft.gguf"
    with_head = replace(lookup, n_mtp_draft=2)
    assert flag(with_head, "--spec-type") == "draft-mtp,ngram-simple"
    assert flag(with_head, "--spec-draft-n-max") == "2"


def test_a_fixed_length_shorter_than_the_pattern_is_raised_and_named() -> None:
    fixed = {"controller": ControllerName.FIXED, "lookup_pattern_min": 6}
    short, long = (speculating(PredictorName.LOOKUP, n_draft=n, **fixed) for n in (2, 9))
    assert flag(short, "--spec-ngram-simple-size-m") == "6"
    assert "up to 6 tokens" in " ".join(differences(ExportRequest(short)))
    assert flag(long, "--spec-ngram-simple-size-m") == "9"
    assert differences(ExportRequest(long)) == ()


@pytest.mark.parametrize("predictor", [PredictorName.OFF, PredictorName.LOOKUP])
def test_a_draft_model_that_does_not_draft_is_left_out_and_named(predictor: PredictorName) -> None:
    idle = replace(speculating(predictor), draft=DraftConfiguration(Path("/d.gguf"), 512))
    assert "--model-draft" not in arguments(idle)
    assert any("d.gguf is left out" in line for line in differences(ExportRequest(idle)))


@given(configuration=CONFIGURATIONS, name=st.sampled_from(["torch", "llama.cpp"]))
@settings(max_examples=10)
def test_settings_of_the_torch_engine_are_named(configuration: Configuration, name: str) -> None:
    torch = replace(configuration, backend=name, kv_cache="kivi4")  # type: ignore[arg-type]
    lines = FORMATS["koboldcpp"].render(ExportRequest(torch)).differences
    assert sum(line.startswith("kv_cache is kivi4") for line in lines) == 1
    assert sum(line.startswith("backend is") for line in lines) == (name == "torch")


def record() -> None:
    """Write the golden files again."""
    GOLDEN.mkdir(exist_ok=True)
    for name in FORMATS:
        (GOLDEN / f"{name}.txt").write_text(golden(name), encoding="utf-8")


if __name__ == "__main__":
    record()
