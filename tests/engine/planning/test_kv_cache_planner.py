"""The planner of scripts: settings, estimates, searches and exports of one object."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from engine.errors import ModelFileError, PresetError
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model
from engine.planning.kv_cache_planner import ConfigurationChanged, KVCachePlanner
from engine.planning.offload import Offload
from engine.planning.search import Goal

RAM = Device("CPU", "cpu", 64 * GIB, 60 * GIB)


def gpu(gib: float) -> Device:
    return Device("GPU 0", "gpu", round(gib * GIB), round(gib * GIB))


def planner(name: str = "llama-3.1-8b", gib: float = 12, **settings: object) -> KVCachePlanner:
    return KVCachePlanner(name, of_devices=(gpu(gib), RAM), **settings)  # type: ignore[arg-type]


def test_a_model_is_named_read_or_given(starter_path: Path) -> None:
    assert planner("qwen2.5-7b").model.architecture.n_layers == 28
    by_path = KVCachePlanner(starter_path, of_devices=(RAM,))
    by_object = KVCachePlanner(read_model(starter_path), of_devices=(RAM,))
    assert by_path.estimate().kv_bytes == by_object.estimate().kv_bytes
    without_file = KVCachePlanner(planner("qwen2.5-7b").model, of_devices=(RAM,))
    assert without_file.model.architecture.n_layers == 28
    with pytest.raises(ModelFileError, match="did you mean"):
        planner("llama-3.1-8bb")


def test_settings_come_with_the_planner_and_later() -> None:
    own = planner(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    assert own.configuration.n_ctx == 8192
    before = own.estimate().kv_bytes
    own.update_config(n_ctx=16384)
    assert own.estimate().kv_bytes == 2 * before
    assert own.estimate(n_ctx=8192).kv_bytes == before


def test_subscribers_get_changes_until_they_leave() -> None:
    own = planner()
    reported: list[ConfigurationChanged] = []
    leave = own.subscribe(reported.append)
    own.update_config(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    assert reported[-1].changed == ("n_ctx", "type_k", "type_v")
    assert (reported[-1].before.n_ctx, reported[-1].after.n_ctx) == (4096, 8192)
    own.update_config(n_ctx=8192)
    assert len(reported) == 1
    leave()
    leave()
    own.update_config(n_ctx=2048)
    assert len(reported) == 1


def test_bad_settings_are_named_all_at_once_and_change_nothing() -> None:
    own = planner()
    before = own.configuration
    with pytest.raises(PresetError) as caught:
        own.update_config(n_ctxx=1, type_k="q9", n_ctx=0, offload="half")
    message = str(caught.value)
    for part in (
        "n_ctxx is an unknown setting, did you mean n_ctx?",
        "n_ctx is 0",
        "type_k is 'q9'",
        "offload is 'half': write one of none, partial, full",
    ):
        assert part in message
    with pytest.raises(PresetError, match="needs flash attention"):
        own.update_config(flash_attention="off", type_v="q8_0", offload="full")
    assert own.configuration == before
    assert own.offload is Offload.PARTIAL


def test_offload_none_partial_and_full_place_the_layers() -> None:
    own = planner(gib=4, n_ctx=8192, offload=Offload.NONE)
    assert own.configuration.n_gpu_layers == -1
    assert not own.estimate().fits
    own.update_config(offload="partial")
    partial = own.configuration.n_gpu_layers
    assert 0 < partial < 33
    assert own.estimate().fits
    own.update_config(offload="full")
    assert own.configuration.n_gpu_layers == 0
    assert set(own.estimate().whole.devices[0].terms) == {TermKind.COMPUTE, TermKind.OVERHEAD}
    own.update_config(n_gpu_layers=7)
    assert own.offload is None
    own.update_config(n_ctx=4096)
    assert own.configuration.n_gpu_layers == 7


def test_optimizing_adopts_the_best_and_notifies() -> None:
    own = planner()
    reported: list[ConfigurationChanged] = []
    own.subscribe(reported.append)
    found = own.optimize_for_vram(8 * GIB, goal=Goal.CONTEXT)
    assert own.configuration == found.configuration == reported[-1].after
    assert own.estimate().fits
    assert any((each.chosen, each.best) == ("q4_0", "f16") for each in found.settings)


@pytest.mark.parametrize(
    ("gib", "settings", "message"),
    [
        (24, {"n_ctx": 4096}, "131,072 tokens"),
        (8, {"n_ctx": 65536, "offload": "none"}, "context 22,528"),
        (4, {"n_ctx": 4096, "offload": "none"}, "layers in RAM"),
        (24, {"n_ctx": 140000}, "training context of 131,072"),
    ],
)
def test_each_estimate_comes_with_a_recommendation(
    gib: float, settings: dict[str, object], message: str
) -> None:
    assert message in planner(gib=gib, **settings).estimate().recommendation


def test_the_text_has_model_context_cache_layers_and_devices() -> None:
    text = planner(n_ctx=8192, type_k="q8_0", type_v="q4_0").format_config()
    for part in ("llama-3.1-8b", "8,192 tokens", "keys q8_0, values q4_0", "all layers on the GPU"):
        assert part in text


def test_planners_share_nothing() -> None:
    first, second = planner(), planner()
    first.update_config(n_ctx=512)
    assert second.configuration.n_ctx == 4096


def options(given: list[str]) -> dict[str, str]:
    return {name: value for name, value in pairwise(given) if name.startswith("--")}


def lm_studio(own: KVCachePlanner) -> dict[str, object]:
    fields = json.loads(own.lm_studio_json())["load"]["fields"]
    return {field["key"]: field["value"] for field in fields}


def test_the_batch_does_not_multiply_the_cache() -> None:
    own = planner("qwen2.5-7b")
    for n_batch in (512, 2048):
        own.update_config(n_batch=n_batch, n_ubatch=512)
        assert own.estimate().kv_bytes == 224 * MIB


def test_the_offload_mode_moves_bytes_arguments_and_exports() -> None:
    own = planner("llama-3.1-8b")
    by_mode = {}
    for mode in ("none", "full"):
        own.update_config(offload=mode)
        by_mode[mode] = (
            own.estimate().whole.devices[0].term(TermKind.WEIGHTS).nbytes > 0,
            options(own.llama_cpp_arguments())["--n-gpu-layers"],
            lm_studio(own)["llm.load.llama.acceleration.offloadRatio"],
        )
    assert by_mode == {"none": (True, "all", "max"), "full": (False, "0", "off")}


def test_lm_studio_reads_what_is_exported() -> None:
    own = planner("llama-3.1-8b", n_ctx=8192, type_k="q8_0", type_v="q8_0")
    fields = lm_studio(own)
    assert fields["llm.load.contextLength"] == 8192
    assert fields["llm.load.llama.kCacheQuantizationType"] == {"checked": True, "value": "q8_0"}


def test_keys_and_values_have_types_of_their_own_and_all_that_llama_cpp_has() -> None:
    own = planner("llama-3.1-8b", type_k="q8_0", type_v="q4_0")
    assert own.estimate().kv_bytes == 32 * 4096 * (1024 * 34 // 32 + 1024 * 18 // 32)
    for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"):
        own.update_config(type_k=name, type_v=name)
    with pytest.raises(PresetError, match="needs flash attention"):
        own.update_config(flash_attention="off")


def test_names_are_those_that_people_write() -> None:
    assert planner("Qwen2.5-Coder-7B").model.architecture.n_layers == 28
    assert planner("Devstral-Small-2507").model.architecture.n_layers == 40


def test_windows_latent_attention_states_experts_and_drafts_are_counted() -> None:
    sliding = planner("gemma-3-12b", gib=48, n_ctx=32768)
    whole = planner("gemma-3-12b", gib=48, n_ctx=32768, swa_full=True)
    assert sliding.estimate().kv_bytes < whole.estimate().kv_bytes / 4
    latent = planner("deepseek-v2-lite")
    assert latent.estimate().bytes_per_token == 27 * (512 + 64) * 2
    assert planner("falcon-mamba-7b").estimate().state_bytes > 0
    experts = planner("qwen3-30b-a3b", gib=12)
    assert experts.configuration.n_cpu_moe > 0
    kinds = {kind for device in experts.estimate().whole.devices for kind in device.terms}
    assert {TermKind.WEIGHTS, TermKind.COMPUTE} <= kinds
    drafted = planner("llama-3.1-8b")
    alone = drafted.estimate().total_bytes
    drafted.set_draft("llama-3.2-1b")
    assert drafted.estimate().total_bytes > alone + 700 * MIB


def test_a_draft_model_is_named_in_the_words_of_today() -> None:
    own = planner("llama-3.1-8b")
    own.set_draft("llama-3.2-1b")
    given = own.llama_cpp_arguments()
    assert options(given)["--spec-type"] == "ngram-simple,draft-simple"
    assert "--spec-draft-n-max" in given
    assert not {"--draft", "--draft-n", "--draft-max", "--draft-min"} & set(given)
    own.set_draft(None)
    assert options(own.llama_cpp_arguments())["--spec-type"] == "ngram-simple"
