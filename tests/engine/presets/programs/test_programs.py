"""Programs without llama-server's flags get what they can hold, and the rest is said."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

from engine.configuration import (
    Adapter,
    Configuration,
    DraftConfiguration,
    KVTypeName,
    PredictorName,
    SamplingSettings,
    TensorOverride,
)
from engine.model.architecture import read_model
from engine.model.ggml_types import TYPES_BY_NAME
from engine.presets.programs.base import ExportError, ExportRequest
from engine.presets.programs.formats import FORMATS
from engine.presets.programs.lm_studio import install_path_of, merge
from engine.presets.programs.remarks import least_type
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


def drafting(configuration: Configuration) -> Configuration:
    speculation = replace(configuration.speculation, predictor=PredictorName.DRAFT, n_draft=5)
    draft = DraftConfiguration(Path("/models/d.gguf"), configuration.n_ctx, n_gpu_layers=7)
    return replace(configuration, draft=draft, speculation=speculation)


def quiet(configuration: Configuration) -> Configuration:
    off = replace(configuration.speculation, predictor=PredictorName.OFF)
    return replace(configuration, speculation=off)


# --- one KV type for keys and values ---


@pytest.mark.parametrize("wanted", sorted(get_args(KVTypeName)))
def test_a_kv_type_never_loses_bits_where_a_larger_one_is_offered(wanted: str) -> None:
    given_type = least_type(wanted, ("f16", "q8_0", "q4_0"))
    assert TYPES_BY_NAME[given_type].bits >= min(TYPES_BY_NAME[wanted].bits, 16)


@pytest.mark.parametrize("name", ["ollama", "koboldcpp"])
def test_two_kv_types_become_the_larger_and_that_is_said(name: str) -> None:
    mixed = quiet(replace(PLAIN, type_k="q8_0", type_v="q4_0"))
    assert "type_v is q4_0" in remarks(name, mixed)
    assert "gets q8_0, larger than planned" in remarks(name, mixed)
    same = quiet(replace(PLAIN, type_k="q8_0", type_v="q8_0"))
    assert "type_" not in remarks(name, same)


def test_a_type_that_ollama_only_passes_on_is_kept_and_said() -> None:
    odd = quiet(replace(PLAIN, type_k="q5_1", type_v="q5_1"))
    (environment,) = FORMATS["ollama"].render(ExportRequest(odd)).companions
    assert "OLLAMA_KV_CACHE_TYPE=q5_1\n" in environment.text
    assert "older ones take f16" in remarks("ollama", odd)


# --- Ollama ---


def modelfile(configuration: Configuration) -> dict[str, str]:
    lines = exported("ollama", configuration).splitlines()
    return dict(
        line.removeprefix("PARAMETER ").split(" ", 1) for line in lines if line[:1] not in "#"
    )


def test_a_modelfile_has_the_plan() -> None:
    found = modelfile(replace(PLAIN, n_gpu_layers=12, n_threads=6, n_slots=2, main_gpu=1))
    assert found["FROM"] == str(MODEL)
    assert (found["num_ctx"], found["num_gpu"], found["num_batch"]) == ("4096", "12", "512")
    assert (found["num_thread"], found["main_gpu"]) == ("6", "1")


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


def test_projector_and_adapters_are_lines_of_the_modelfile() -> None:
    both = replace(
        PLAIN, mmproj_path=Path("/models/p.gguf"), adapters=(Adapter(Path("/models/l.gguf")),)
    )
    lines = exported("ollama", both).splitlines()
    assert "FROM /models/p.gguf" in lines
    assert "ADAPTER /models/l.gguf" in lines


# --- koboldcpp ---


def kcpps(configuration: Configuration, **request: bool) -> dict[str, object]:
    text = FORMATS["koboldcpp"].render(ExportRequest(configuration, **request)).text
    found: dict[str, object] = json.loads(text)
    return found


def test_koboldcpp_has_its_own_numbers_for_types_layers_and_windows() -> None:
    found = kcpps(replace(PLAIN, type_k="q4_0", type_v="q4_0", n_cpu_moe=-1, offload_kqv=False))
    assert (found["quantkv"], found["gpulayers"], found["moecpu"]) == (2, 999, 999)
    assert (found["useswa"], found["lowvram"], found["batchsize"]) == (True, True, 512)
    assert found["model_param"] == str(MODEL)
    whole = kcpps(replace(PLAIN, swa_full=True, flash_attention="off"))
    assert (whole["useswa"], whole["noswa"]) == (False, True)
    assert (whole["flashattention"], whole["noflashattention"]) == (False, True)
    assert kcpps(replace(PLAIN, type_k="q5_1", type_v="q5_1"))["quantkv"] == "q5_1"


def test_koboldcpp_has_sampling_as_defaults_of_its_api() -> None:
    sampled = replace(PLAIN, sampling=SamplingSettings(1.1, 32, 0.7, 40, 0.9, 0.05))
    defaults = json.loads(str(kcpps(sampled)["gendefaults"]))
    assert defaults["temperature"] == 0.7
    assert (defaults["rep_pen"], defaults["rep_pen_range"]) == (1.1, 32)


def test_values_quantised_without_flash_attention_are_said_for_koboldcpp() -> None:
    odd = quiet(replace(PLAIN, type_k="q8_0", type_v="q8_0", flash_attention="off"))
    assert "quantises the keys only" in remarks("koboldcpp", odd)


def test_koboldcpp_takes_draft_overrides_and_one_gpu() -> None:
    one = replace(
        drafting(PLAIN),
        split_mode="none",
        main_gpu=1,
        tensor_overrides=(TensorOverride("a", "GPU 1"), TensorOverride("b")),
    )
    found = kcpps(one)
    assert (found["draftmodel"], found["draftamount"], found["draftgpulayers"]) == (
        "/models/d.gguf", 5, 7
    )  # fmt: skip
    assert found["usecuda"] == ["normal", "1"]
    assert found["overridetensors"] == "a=CUDA1,b=CPU"
    assert kcpps(PLAIN, uses_gpu=False)["usecpu"] is True


def test_a_batch_that_koboldcpp_has_not_is_the_next_smaller() -> None:
    assert kcpps(replace(PLAIN, n_ubatch=300))["batchsize"] == 256
    assert "gets 256" in remarks("koboldcpp", replace(PLAIN, n_ubatch=300))


# --- llama-cpp-python ---


def python_server(configuration: Configuration) -> dict[str, object]:
    found: dict[str, object] = json.loads(exported("llama-cpp-python", configuration))["models"][0]
    return found


def test_the_python_server_has_numbers_for_types_and_modes() -> None:
    found = python_server(replace(PLAIN, type_k="q8_0", type_v="bf16", split_mode="none"))
    assert (found["type_k"], found["type_v"], found["split_mode"]) == (8, 30, 0)
    assert found["logits_all"] is False
    assert found["draft_model"] == "prompt-lookup-decoding"
    assert "draft_model" not in python_server(quiet(PLAIN))


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


def test_an_unchecked_box_is_f16() -> None:
    found = fields(replace(PLAIN, type_k="f16", type_v="q5_1"))
    assert found["llm.load.llama.kCacheQuantizationType"] == {"checked": False, "value": "f16"}
    assert found["llm.load.llama.vCacheQuantizationType"] == {"checked": True, "value": "q5_1"}
    assert "bf16" in remarks("lm-studio", replace(PLAIN, type_k="bf16"))


def test_sampling_that_is_off_is_unchecked() -> None:
    found = fields(replace(PLAIN, sampling=SamplingSettings(1.1, 64, 0.7, 40, 1.0, 0.05)))
    assert found["llm.prediction.topPSampling"] == {"checked": False, "value": 1.0}
    assert found["llm.prediction.minPSampling"] == {"checked": True, "value": 0.05}


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
    with pytest.raises(ExportError, match="file that is there"):
        merge(broken, exported("lm-studio", PLAIN))


# --- what stays behind ---


@pytest.mark.parametrize("name", ["ollama", "llama-cpp-python", "lm-studio"])
def test_a_setting_without_a_place_is_named_with_its_value(name: str) -> None:
    odd = replace(PLAIN, tensor_overrides=(TensorOverride("ffn_up", "GPU 1"),))
    assert "tensor_overrides is ffn_up=GPU 1" in remarks(name, odd)
