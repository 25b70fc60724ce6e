"""Nineteen faults of a planner of the same purpose, and that this one has none of them.

1 to 12 concern the cache and the planner, 13 to 19 speculation; each test names its fault.
"""

import json
from itertools import pairwise
from statistics import mean

import pytest

from engine.errors import PresetError
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.catalog import recommended_drafts
from engine.planning.kv_cache_planner import KVCachePlanner
from engine.speculation.controller import FixedController
from engine.speculation.costs import PlainStep
from engine.speculation.stats import TimeSaved
from tests.support.speculation_simulator import GPU, World, play_auto, steady

RAM = Device("CPU", "cpu", 128 * GIB, 120 * GIB)


def planner(name: str, gib: float = 24, **settings: object) -> KVCachePlanner:
    nbytes = round(gib * GIB)
    card = Device("GPU 0", "gpu", nbytes, nbytes)
    return KVCachePlanner(name, of_devices=(card, RAM), **settings)  # type: ignore[arg-type]


def options(given: list[str]) -> dict[str, str]:
    return {name: value for name, value in pairwise(given) if name.startswith("--")}


def lm_studio(own: KVCachePlanner) -> dict[str, object]:
    fields = json.loads(own.lm_studio_json())["load"]["fields"]
    return {field["key"]: field["value"] for field in fields}


def test_1_the_batch_does_not_multiply_the_cache() -> None:
    own = planner("qwen2.5-7b")
    for n_batch in (512, 2048):
        own.update_config(n_batch=n_batch, n_ubatch=512)
        assert own.estimate().kv_bytes == 224 * MIB


def test_7_the_offload_mode_moves_bytes_arguments_and_exports() -> None:
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


def test_8_lm_studio_reads_what_is_exported() -> None:
    own = planner("llama-3.1-8b", n_ctx=8192, type_k="q8_0", type_v="q8_0")
    fields = lm_studio(own)
    assert fields["llm.load.contextLength"] == 8192
    assert fields["llm.load.llama.kCacheQuantizationType"] == {"checked": True, "value": "q8_0"}


def test_9_keys_and_values_have_types_of_their_own_and_all_that_llama_cpp_has() -> None:
    own = planner("llama-3.1-8b", type_k="q8_0", type_v="q4_0")
    assert own.estimate().kv_bytes == 32 * 4096 * (1024 * 34 // 32 + 1024 * 18 // 32)
    for name in ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"):
        own.update_config(type_k=name, type_v=name)
    with pytest.raises(PresetError, match="needs flash attention"):
        own.update_config(flash_attention="off")


def test_10_names_are_those_that_people_write() -> None:
    assert planner("Qwen2.5-Coder-7B").model.file.path.name.startswith("qwen2.5-7b")
    assert planner("Devstral-Small-2507").model.architecture.n_layers == 40


def test_12_windows_latent_attention_states_experts_and_drafts_are_counted() -> None:
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


def test_13_drafts_are_recommended_by_vocabulary_and_size_not_by_a_word_of_the_name() -> None:
    def drafts(name: str) -> list[str]:
        return [pair.draft for pair in recommended_drafts(name)]

    assert "llama-3.2-3b" in drafts("llama-3.1-70b")
    assert "qwen2.5-1.5b" in drafts("qwen2.5-32b")
    for old in ("llama-2-7b", "codellama-7b", "tinyllama"):
        assert not any(name.startswith("llama-3") for name in drafts(old))


def test_14_the_first_round_already_speculates() -> None:
    assert FixedController(3).length == 3


def test_17_the_length_follows_many_rounds_and_never_flips_with_one() -> None:
    played = play_auto(World(GPU, steady(0.9)), 600)
    late = played.lengths[len(played.lengths) // 2 :]
    assert mean(length for length in late if length) > 4
    assert late.count(0) < len(late) / 8  # wrong guesses of one round turn nothing off


def test_18_what_a_step_costs_is_measured_and_so_is_what_was_saved() -> None:
    step = PlainStep()
    assert step.seconds is None
    for seconds in (0.1, 0.1, 5.0):
        step.add(seconds)
    assert step.seconds == 0.1
    saved = TimeSaved()
    assert saved.seconds is None
    for _ in range(2):
        saved.add(step, n_verified=4, n_emitted=5, draft_s=0.0, elapsed_s=0.3)
    assert saved.seconds == pytest.approx(2 * (5 * 0.1 - 0.3))


def test_19_a_draft_model_is_named_in_the_words_of_today() -> None:
    own = planner("llama-3.1-8b")
    own.set_draft("llama-3.2-1b")
    given = own.llama_cpp_arguments()
    assert options(given)["--spec-type"] == "draft-simple"
    assert "--spec-draft-n-max" in given
    assert not {"--draft", "--draft-n", "--draft-max", "--draft-min"} & set(given)
    own.set_draft(None)
    assert "draft-simple" not in own.llama_cpp_arguments()
