"""Presets that are rules with a goal, on models such as people have."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.estimate import DoesNotFitError, estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry
from engine.planning.resolve import resolve
from engine.presets.library import find_preset, list_presets
from engine.presets.preset import Preset, parse_preset

NOBODY = Path("nobody's presets")
RAM = Device("CPU", "cpu", 64 * GIB, 60 * GIB)
MODELS = ("qwen2.5-0.5b", "llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b")


def model(name: str) -> Model:
    return find_entry(name).model("Q4_K_M")


def built_in(stem: str) -> Preset:
    entry = next(e for e in list_presets(NOBODY) if e.path.stem == stem)
    return find_preset(str(entry.path), NOBODY)


def machine(rules: Preset) -> tuple[Device, ...]:
    if rules.n_gpu_layers == 0:
        return (RAM,)
    nbytes = round((rules.vram_gib or 12) * GIB)
    return (Device("GPU 0", "gpu", nbytes, nbytes), RAM)


def resolved(stem: str, name: str) -> Configuration:
    return resolved_rules(built_in(stem), name)


def resolved_rules(rules: Preset, name: str) -> Configuration:
    return resolve(rules, model(name), machine(rules), target="llama-server")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("stem", [entry.path.stem for entry in list_presets(NOBODY)])
def test_every_preset_gives_something_that_fits_its_machine(stem: str, name: str) -> None:
    rules, of_model = built_in(stem), model(name)
    on = machine(rules)
    found = resolve(rules, of_model, on, target="llama-server")
    cost = estimate(of_model, found, on, target="llama-server")
    assert cost.fits(round(rules.margin_gib * GIB))
    trained = of_model.architecture.n_ctx_train
    assert min(4096, trained) <= found.n_ctx <= trained * found.n_slots
    assert not any("slow path" in warning for warning in cost.warnings)


def test_larger_cards_give_more_of_the_same_model() -> None:
    cards = [Preset(name="x", goal="balanced", vram_gib=gib) for gib in (6, 8, 12, 16, 24, 48)]
    contexts = [resolved_rules(rules, "llama-3.1-8b") for rules in cards]
    assert contexts[0].type_k == "q8_0"
    assert contexts[2].type_k == "f16"
    assert [c.n_ctx for c in contexts] == sorted(c.n_ctx for c in contexts)


def test_rules_without_gpu_use_none_though_there_is_one() -> None:
    rules = Preset(name="x", goal="balanced", n_gpu_layers=0, ram_gib=32)
    small_card = Device("GPU 0", "gpu", 2 * GIB, 2 * GIB)
    found = resolve(rules, model("llama-3.1-8b"), (small_card, RAM))
    assert found.n_gpu_layers == 0
    large_card = Device("GPU 0", "gpu", 48 * GIB, 48 * GIB)
    less = rules.model_copy(update={"ram_gib": 16})
    with pytest.raises(DoesNotFitError, match="CPU needs"):
        resolve(less, model("qwen3-32b"), (large_card, RAM))
    without = resolve(rules, model("llama-3.1-8b"), (RAM,))
    assert (found.n_ctx, found.type_k) == (without.n_ctx, without.type_k) == (32768, "f16")


def test_long_context_has_the_longest_and_coding_drafts_from_its_text() -> None:
    longest = resolved("long-context", "llama-3.1-8b")
    assert longest.n_ctx == max(
        resolved(e.path.stem, "llama-3.1-8b").n_ctx for e in list_presets(NOBODY)
    )
    coding = resolved("coding", "llama-3.1-8b")
    assert (coding.type_k, coding.speculation.predictor) == ("q8_0", "suffix")
    assert coding.speculation.controller == "auto"
    assert coding.sampling.temperature == 0


def test_what_a_goal_preset_fixes_stays() -> None:
    rules = parse_preset('name="x"\ngoal="context"\nn_ctx=5000\ntype_v="q8_0"\nn_ubatch=64', "x")
    found = resolve(rules, model("llama-3.1-8b"), machine(rules))
    assert found.n_ctx == 5000
    assert (found.type_k, found.type_v, found.n_ubatch) == ("q8_0", "q8_0", 64)


def test_a_goal_beside_fixed_layers_is_refused() -> None:
    rules = Preset(name="x", goal="speed", n_gpu_layers=12, n_cpu_moe=3)
    with pytest.raises(PresetError, match="remove n_gpu_layers and n_cpu_moe, or the goal"):
        resolve(rules, model("llama-3.1-8b"), machine(rules))


def test_a_draft_that_is_named_is_used_with_a_goal() -> None:
    rules = Preset(name="x", goal="speed")
    small = model("llama-3.2-1b")
    found = resolve(rules, model("llama-3.1-8b"), machine(rules), draft=small)
    assert found.draft is not None
    assert found.draft.n_ctx == min(found.n_ctx, 4096)


SMALL_RAM = Device("CPU", "cpu", 32 * GIB, 28 * GIB)
CARD = Device("GPU 0", "gpu", 24 * GIB, 24 * GIB)
SPEED = Preset(name="mine", goal="speed", n_ctx=8192)


def attention(rules: Preset = SPEED, name: str = "llama-3.1-8b", *devices: Device) -> str:
    return resolve(rules, model(name), devices or (SMALL_RAM,)).flash_attention


def test_a_dense_model_on_the_processor_is_opened_without_flash_attention() -> None:
    assert attention() == "off"
    assert attention(SPEED, "qwen2.5-0.5b") == "off"
    on_card = replace_rules(n_gpu_layers=0)
    assert attention(on_card, "llama-3.1-8b", CARD, SMALL_RAM) == "off"
    assert attention(SPEED, "llama-3.1-8b", CARD, SMALL_RAM) == "auto"


def replace_rules(**changes: object) -> Preset:
    return SPEED.model_copy(update=changes)


@pytest.mark.parametrize("name", ["gemma-3-4b", "deepseek-v3", "qwen3-next-80b-a3b"])
def test_windows_latent_and_recurrent_layers_are_left_to_llama_cpp(name: str) -> None:
    large = Device("CPU", "cpu", 2048 * GIB, 2000 * GIB)
    assert attention(SPEED, name, large) == "auto"


def test_the_table_of_scores_takes_a_small_part_of_the_memory() -> None:
    rules, of_model = replace_rules(n_ctx=32768), model("llama-3.1-8b")
    small, large = (Device("CPU", "cpu", n * GIB, n * GIB) for n in (32, 128))
    assert attention(rules, "llama-3.1-8b", small) == "auto"
    chosen = resolve(rules, of_model, (large,))
    assert chosen.flash_attention == "off"
    table, without = (
        estimate(of_model, replace(chosen, flash_attention=value), (large,)).total_bytes
        for value in ("off", "on")
    )
    assert 1 * GIB < table - without <= 4 * GIB


def test_it_is_not_chosen_where_the_table_does_not_fit() -> None:
    table = resolve(SPEED, model("llama-3.1-8b"), (SMALL_RAM,))
    need = estimate(model("llama-3.1-8b"), table, (SMALL_RAM,)).total_bytes
    for left, expected in ((MIB, "off"), (-MIB, "auto")):
        tight = Device("CPU", "cpu", 32 * GIB, need + left)
        rules = replace_rules(margin_gib=0.0)
        assert attention(rules, "llama-3.1-8b", tight) == expected


def test_only_speed_is_worth_texts_that_drafts_may_change_at_near_ties() -> None:
    assert attention(Preset(name="mine", n_ctx=8192)) == "auto"
    for goal in ("balanced", "quality", "context"):
        rules = Preset(name="mine", goal=goal, n_ctx=8192, n_gpu_layers=0)
        assert attention(rules) == "auto"
