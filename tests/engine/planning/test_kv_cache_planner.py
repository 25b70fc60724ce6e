from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import HardwareError, ModelFileError, PresetError
from engine.memory.estimate import DoesNotFitError
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB
from engine.model.architecture import read_model
from engine.planning.goals import Goal, Offload, SearchLimits
from engine.planning.knobs import KNOBS
from engine.planning.kv_cache_planner import SETTINGS, ConfigurationChanged, KVCachePlanner

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
    with pytest.raises(ModelFileError, match="did you mean"):
        planner("llama-3.1-8bb")
    with pytest.raises(PresetError, match="no model is set"):
        KVCachePlanner(of_devices=(RAM,)).estimate()


def test_settings_come_with_the_planner_and_later() -> None:
    own = planner(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    assert own.configuration.n_ctx == 8192
    before = own.estimate().kv_bytes
    own.update_config(n_ctx=16384)
    assert own.estimate().kv_bytes == 2 * before
    assert own.estimate(n_ctx=8192).kv_bytes == before


def test_subscribers_are_told_what_changed_until_they_leave() -> None:
    own = planner()
    told: list[ConfigurationChanged] = []
    leave = own.subscribe(told.append)
    own.update_config(n_ctx=8192, type_k="q8_0", type_v="q8_0")
    assert told[-1].changed == ("n_ctx", "type_k", "type_v")
    assert (told[-1].before.n_ctx, told[-1].after.n_ctx) == (4096, 8192)
    own.update_config(n_ctx=8192)
    assert len(told) == 1
    leave()
    leave()
    own.update_config(n_ctx=2048)
    assert len(told) == 1


def test_a_script_changes_what_the_screen_turns() -> None:
    own = planner()
    own.update_config(tensor_split=(3, 1), mmproj_offload=False, n_threads=3)
    now = own.configuration
    assert (now.tensor_split, now.mmproj_offload, now.n_threads) == ((3.0, 1.0), False, 3)
    turned = {each.name for each in KNOBS if hasattr(now, each.name)} - {"draft"}
    assert turned <= set(SETTINGS)
    with pytest.raises(PresetError, match="main_gpu is -1"):
        own.update_config(main_gpu=-1)


def test_bad_settings_are_named_all_at_once_and_change_nothing() -> None:
    own = planner()
    before = own.configuration
    with pytest.raises(PresetError) as caught:
        own.update_config(n_ctxx=1, type_k="q9", n_ctx=0, offload="half")
    message = str(caught.value)
    for part in ("n_ctxx is no setting, did you mean n_ctx?", "type_k is 'q9'", "n_ctx is 0",
                 "offload is 'half': it is one of none, partial"):  # fmt: skip
        assert part in message
    with pytest.raises(PresetError, match="needs flash attention"):
        own.update_config(flash_attention="off", type_v="q8_0", offload="full")
    assert own.configuration == before
    assert own.offload is Offload.PARTIAL


def test_offload_none_partial_and_full_lie_where_they_say() -> None:
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


def test_optimizing_takes_the_best_and_tells() -> None:
    own = planner()
    told: list[ConfigurationChanged] = []
    own.subscribe(told.append)
    found = own.optimize_for_vram(8 * GIB, goal=Goal.CONTEXT)
    assert own.configuration == found.configuration == told[-1].after
    assert own.estimate().fits
    assert any((each.taken, each.best) == ("q4_0", "f16") for each in found.knobs)


def test_what_cannot_be_optimized_leaves_the_configuration() -> None:
    own = KVCachePlanner("llama-3.1-70b", of_devices=(gpu(8), replace(RAM, free_bytes=8 * GIB)))
    before = own.configuration
    with pytest.raises(DoesNotFitError, match="does not fit"):
        own.optimize_for_vram(8 * GIB, limits=SearchLimits(offload=Offload.NONE))
    with pytest.raises(HardwareError, match="above 0"):
        own.optimize_for_vram(-1)
    assert own.configuration == before


@pytest.mark.parametrize(
    ("gib", "settings", "said"),
    [
        (24, {"n_ctx": 4096}, "all 131,072 tokens"),
        (8, {"n_ctx": 4096}, "tokens of context would"),
        (
            8,
            {"n_ctx": 65536, "offload": "none"},
            "It fits with context 22,528, q4_0 K and V, 18 layers on the GPU or KV",
        ),
        (7, {"n_ctx": 120000, "offload": "none"}, "It fits with context 14,592"),
        (
            4,
            {"n_ctx": 4096, "offload": "none"},
            "GPU 0 lacks 1.2 GiB. It fits with 20 layers on the GPU.",
        ),
        (24, {"n_ctx": 140000}, "was trained on 131,072 tokens"),
    ],
)
def test_each_estimate_comes_with_a_recommendation(
    gib: float, settings: dict[str, object], said: str
) -> None:
    assert said in planner(gib=gib, **settings).estimate().recommendation


def test_the_text_says_model_context_cache_layers_and_devices() -> None:
    text = planner(n_ctx=8192, type_k="q8_0", type_v="q4_0").format_config()
    for part in ("llama-3.1-8b", "8,192 tokens", "keys q8_0, values q4_0", "all layers on the GPU"):
        assert part in text


def test_planners_share_nothing() -> None:
    first, second = planner(), planner()
    first.update_config(n_ctx=512)
    assert second.configuration.n_ctx == 4096
