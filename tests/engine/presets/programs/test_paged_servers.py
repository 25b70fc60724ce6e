"""Launches of vLLM and SGLang: how GPUs share a model, what each holds, what is lost."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import (
    Configuration,
    DraftConfiguration,
    PredictorName,
    SpeculationSettings,
)
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.catalog import find_entry
from engine.presets.programs.base import ExportError, ExportRequest
from engine.presets.programs.formats import FORMATS
from engine.presets.programs.paged_server import spread_of
from engine.presets.programs.shell import commands

PLAIN = Configuration(
    Path("/m/q.gguf"), 4 * 8192, n_slots=4, speculation=SpeculationSettings(PredictorName.OFF)
)
MODEL = find_entry("qwen3-8b").model("Q4_K_M")


def gpus(*hosts: str) -> tuple[Device, ...]:
    return tuple(
        Device(f"{host} {i}", "gpu", 24 * GIB, 24 * GIB, worker=f"{host}:50052" if host else "")
        for i, host in enumerate(hosts)
    )


def request(*hosts: str, configuration: Configuration = PLAIN) -> ExportRequest:
    return ExportRequest(configuration, MODEL, name="q", gpus=gpus(*hosts), ram_free_bytes=64 * GIB)


def words(name: str, asked: ExportRequest) -> list[str]:
    return of_text(FORMATS[name].render(asked).text)


def of_text(text: str) -> list[str]:
    (command,) = commands(text)
    return [word for word in command.words if word != "exec"]


def value(found: Sequence[str], flag: str) -> str:
    return found[found.index(flag) + 1]


@pytest.mark.parametrize(
    ("hosts", "shares"),
    [(("",), (1, 1)), (("", ""), (2, 1)), (("a", "a", "b", "b"), (2, 2)), (("a", "b", "b"), (1, 3)),
     (("",) * 3, (1, 3)), (("",) * 8, (8, 1))],
)  # fmt: skip
def test_gpus_of_a_machine_share_layers_and_machines_follow_each_other(
    hosts: tuple[str, ...], shares: tuple[int, int]
) -> None:
    spread = spread_of(request(*hosts), 16)
    assert (spread.n_tensor, spread.n_pipeline) == shares
    assert spread.n_gpus == len(hosts)


def test_each_gpu_holds_its_heads_and_no_less_than_one() -> None:
    architecture = MODEL.architecture
    per_layer = {(layer.n_kv_heads, layer.k_head_dim + layer.v_head_dim)
                 for layer in architecture.layers.values()}  # fmt: skip
    ((n_kv_heads, dims),) = per_layer
    whole = spread_of(request(""), 16).token_bytes
    assert whole == architecture.n_layers * n_kv_heads * dims * 2
    assert spread_of(request("", ""), 16).token_bytes * 2 == whole
    assert spread_of(request("a", "b"), 16).token_bytes * 2 == whole
    assert spread_of(request(*[""] * 16), 16).token_bytes == architecture.n_layers * dims * 2


def test_vllm_has_the_slots_the_context_of_each_and_a_share_of_the_memory() -> None:
    found = words("vllm", request("", ""))
    assert found[:3] == ["vllm", "serve", "/m/q.gguf"]
    assert value(found, "--max-model-len") == "8192"
    assert value(found, "--max-num-seqs") == "4"
    assert value(found, "--tensor-parallel-size") == "2"
    assert value(found, "--gpu-memory-utilization") == "0.95"
    assert "--kv-cache-dtype" not in found
    half = replace(request(""), gpus=(Device("G", "gpu", 24 * GIB, 12 * GIB),))
    assert value(words("vllm", half), "--gpu-memory-utilization") == "0.47"


def test_two_machines_get_a_script_each_and_the_first_is_the_master() -> None:
    exported = FORMATS["vllm"].render(request("a", "a", "b", "b"))
    (other,) = exported.companions
    first, second = of_text(exported.text), of_text(other.text)
    assert (value(first, "--node-rank"), value(second, "--node-rank")) == ("0", "1")
    assert "--headless" in second
    assert value(second, "--master-addr") == "a"
    found = FORMATS["sglang"].render(request("a", "a", "b", "b"))
    assert value(of_text(found.text), "--pp-size") == "2"
    assert value(of_text(found.companions[0].text), "--dist-init-addr") == "a:20000"


def test_uneven_machines_go_by_ray_or_are_refused() -> None:
    exported = FORMATS["vllm"].render(request("a", "b", "b"))
    assert value(of_text(exported.text), "--distributed-executor-backend") == "ray"
    assert any("ray start --address=a:6379" in remark for remark in exported.remarks)
    with pytest.raises(ExportError, match="a 1, b 2"):
        FORMATS["sglang"].render(request("a", "b", "b"))


def test_drafts_and_the_cache_type_arrive_as_far_as_they_can() -> None:
    draft = replace(
        PLAIN,
        type_k="q8_0",
        type_v="q4_0",
        speculation=SpeculationSettings(PredictorName.DRAFT, n_draft=5),
        draft=DraftConfiguration(Path("/m/d.gguf"), 8192),
    )
    found = words("vllm", request("", configuration=draft))
    assert value(found, "--kv-cache-dtype") == "fp8"
    assert '"method": "draft_model"' in value(found, "--speculative-config")
    assert value(words("sglang", request("", configuration=draft)), "--speculative-algorithm") == (
        "STANDALONE"
    )
    look_up = replace(PLAIN, speculation=SpeculationSettings(PredictorName.LOOKUP))
    assert '"ngram"' in value(
        words("vllm", request("", configuration=look_up)), "--speculative-config"
    )
    exported = FORMATS["vllm"].render(request("", configuration=draft))
    assert any("keeps both in 8 bits" in remark for remark in exported.remarks)


def test_the_heading_has_the_bytes_of_each_gpu_and_a_second_tier() -> None:
    text = FORMATS["vllm"].render(request("", "")).text
    assert "2,048 blocks of 16 tokens" in text
    assert "--kv-offloading-size 32" in text
    assert "--hicache-size 16" in FORMATS["sglang"].render(request("", "")).text
    small = replace(request(""), ram_free_bytes=GIB)
    assert "second tier" not in FORMATS["vllm"].render(small).text
