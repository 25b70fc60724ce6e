"""Programs without llama-server's flags get what they can hold, and the rest is said."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

from engine.configuration import (
    Configuration,
    PredictorName,
)
from engine.model.architecture import read_model
from engine.presets.programs.base import ExportError, ExportRequest
from engine.presets.programs.formats import FORMATS
from engine.presets.programs.lm_studio import install_path_of, merge
from tests.engine.presets.strategies import CONFIGURATIONS

MODEL = Path("/models/my model.gguf")
PLAIN = Configuration(MODEL, 8192, n_batch=512, flash_attention="on")
LM_STUDIO_SHAPES: Mapping[str, object] = {
    "llm.prediction.temperature": float,
    "llm.prediction.topKSampling": int,
    "llm.prediction.topPSampling": {"checked", "value"},
    "llm.prediction.minPSampling": {"checked", "value"},
    "llm.prediction.repeatPenalty": {"checked", "value"},
    "llm.load.contextLength": int,
    "llm.load.offloadKVCacheToGpu": bool,
    "llm.load.numCpuExpertLayersRatio": "ratio",
    "llm.load.numParallelSessions": int,
    "llm.load.useUnifiedKvCache": bool,
    "llm.load.llama.autoFit": bool,
    "llm.load.llama.acceleration.offloadRatio": "ratio",
    "llm.load.llama.cpuThreadPoolSize": int,
    "llm.load.llama.tryMmap": bool,
    "llm.load.llama.evalBatchSize": int,
    "llm.load.llama.physicalBatchSize": int,
    "llm.load.llama.flashAttention": bool,
    "llm.load.llama.kCacheQuantizationType": {"checked", "value"},
    "llm.load.llama.vCacheQuantizationType": {"checked", "value"},
    "llm.load.llama.speculativeDecoding.draftMtp": bool,
    "llm.load.llama.speculativeDecoding.draftSimple": bool,
    "llm.load.llama.speculativeDecoding.draftModel": str,
    "llm.load.llama.speculativeDecoding.draftMaxTokens": int,
    "llm.load.llama.speculativeDecoding.draftMinTokens": int,
    "llm.load.llama.speculativeDecoding.draftMinContinueProbability": float,
    "load.gpuSplitConfig": {"strategy", "disabledGpus", "priority", "customRatio"},
}
"""Keys and value shapes of lmstudio-js, commit 6ec11db, `lms-kv-config/src/schema.ts`."""


def exported(name: str, configuration: Configuration) -> str:
    return FORMATS[name].render(ExportRequest(configuration)).text


def remarks(name: str, configuration: Configuration) -> str:
    return "\n".join(FORMATS[name].render(ExportRequest(configuration)).remarks)


def quiet(configuration: Configuration) -> Configuration:
    off = replace(configuration.speculation, predictor=PredictorName.OFF)
    return replace(configuration, speculation=off)


# --- one KV type for keys and values ---


@pytest.mark.parametrize("name", ["ollama", "koboldcpp"])
def test_two_kv_types_become_the_larger_and_that_is_said(name: str) -> None:
    mixed = quiet(replace(PLAIN, type_k="q8_0", type_v="q4_0"))
    assert "type_v is q4_0" in remarks(name, mixed)
    assert "gets q8_0, larger than planned" in remarks(name, mixed)
    same = quiet(replace(PLAIN, type_k="q8_0", type_v="q8_0"))
    assert "type_" not in remarks(name, same)


# --- Ollama ---


def test_what_belongs_to_ollamas_server_comes_as_its_environment() -> None:
    request = ExportRequest(
        replace(PLAIN, type_k="q4_0", type_v="q4_0", n_slots=3), margin_bytes=2**30
    )
    (environment,) = FORMATS["ollama"].render(request).companions
    assert environment.text.splitlines() == [
        "OLLAMA_KV_CACHE_TYPE=q4_0",
        "OLLAMA_FLASH_ATTENTION=1",
        "OLLAMA_NUM_PARALLEL=3",
        "OLLAMA_GPU_OVERHEAD=1073741824",
    ]


# --- koboldcpp ---


# --- llama-cpp-python ---


def test_the_python_server_keeps_whole_windows_and_that_is_said_where_there_are_any(
    starter_path: Path, gemma_path: Path
) -> None:
    said = {
        path: any(
            "swa_full is off" in remark
            for remark in FORMATS["llama-cpp-python"]
            .render(ExportRequest(replace(PLAIN, model_path=path), read_model(path)))
            .remarks
        )
        for path in (starter_path, gemma_path)
    }
    assert said == {starter_path: False, gemma_path: True}


# --- LM Studio ---


def fields(configuration: Configuration, **request: object) -> dict[str, object]:
    asked = ExportRequest(configuration, **request)  # type: ignore[arg-type]  # by name
    data = json.loads(FORMATS["lm-studio"].render(asked).text)
    listed = [*data["operation"]["fields"], *data["load"]["fields"]]
    return {each["key"]: each["value"] for each in listed}


@given(configuration=CONFIGURATIONS)
@settings(max_examples=60)
def test_every_field_is_one_that_lm_studio_has_and_of_its_shape(
    configuration: Configuration,
) -> None:
    for key, value in fields(configuration).items():
        shape = LM_STUDIO_SHAPES[key]
        if shape == "ratio":
            assert value in ("max", "off") or 0 <= float(str(value)) <= 1
        elif isinstance(shape, set):
            assert isinstance(value, dict)
            assert set(value) == shape
        else:
            assert isinstance(value, (int, float) if shape is float else shape)  # type: ignore[arg-type]  # a type


def test_layers_are_a_share_of_those_in_the_file(starter_path: Path) -> None:
    model = read_model(starter_path)
    n_blocks = model.architecture.n_blocks
    key = "llm.load.llama.acceleration.offloadRatio"
    shares = [
        fields(replace(PLAIN, n_gpu_layers=count), model=model)[key]
        for count in (0, n_blocks // 2, n_blocks + 1, -1)
    ]
    assert shares == ["off", (n_blocks // 2) / n_blocks, "max", "max"]


def test_the_place_follows_the_models_place() -> None:
    home = Path("/home/me/.lmstudio")
    assert install_path_of(home / "models" / "pub" / "repo" / "m.gguf") == (
        home / ".internal/user-concrete-model-default-config/pub/repo/m.gguf.json"
    )
    assert install_path_of(Path("/models/m.gguf")) is None


def test_the_place_is_the_newer_ones_where_that_is_installed(tmp_path: Path) -> None:
    home = tmp_path / ".lmstudio"
    (home / "apps" / "bionic" / ".internal").mkdir(parents=True)
    found = install_path_of(home / "models" / "pub" / "repo" / "m.gguf")
    assert found is not None
    assert found.is_relative_to(home / "apps" / "bionic")


def test_fields_of_others_stay_and_ours_replace_theirs() -> None:
    old = {
        "preset": "mine",
        "load": {
            "note": 1,
            "fields": [
                {"key": "llm.load.seed", "value": 3},
                {"key": "llm.load.contextLength", "value": 1},
            ],
        },
        "extra": [1],
    }
    merged = json.loads(merge("\ufeff" + json.dumps(old), exported("lm-studio", PLAIN)))
    values = {each["key"]: each["value"] for each in merged["load"]["fields"]}
    assert (values["llm.load.seed"], values["llm.load.contextLength"]) == (3, 8192)
    assert (merged["preset"], merged["extra"], merged["load"]["note"]) == ("mine", [1], 1)
    assert merged["operation"]["fields"]


@pytest.mark.parametrize("broken", ["", "{", "[]", "3"])
def test_a_broken_file_is_not_written_over(broken: str) -> None:
    with pytest.raises(ExportError, match="the existing file"):
        merge(broken, exported("lm-studio", PLAIN))


# --- what stays behind ---


def python_server(configuration: Configuration) -> dict[str, object]:
    found: dict[str, object] = json.loads(exported("llama-cpp-python", configuration))["models"][0]
    return found


def test_the_python_server_has_numbers_for_types_and_modes() -> None:
    found = python_server(replace(PLAIN, type_k="q8_0", type_v="bf16", split_mode="none"))
    assert (found["type_k"], found["type_v"], found["split_mode"]) == (8, 30, 0)
    assert found["logits_all"] is False
    assert found["draft_model"] == "prompt-lookup-decoding"
    assert "draft_model" not in python_server(quiet(PLAIN))
