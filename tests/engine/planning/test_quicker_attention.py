"""Where `auto` becomes attention with a table of scores."""

from dataclasses import replace

import pytest

from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry
from engine.planning.resolve import resolve
from engine.presets.preset import Preset

RAM = Device("CPU", "cpu", 32 * GIB, 28 * GIB)
CARD = Device("GPU 0", "gpu", 24 * GIB, 24 * GIB)
SPEED = Preset(name="mine", goal="speed", n_ctx=8192)


def model(name: str) -> Model:
    return find_entry(name).model("Q4_K_M")


def attention(rules: Preset = SPEED, name: str = "llama-3.1-8b", *devices: Device) -> str:
    return resolve(rules, model(name), devices or (RAM,)).flash_attention


def test_a_dense_model_on_the_processor_is_opened_without_flash_attention() -> None:
    assert attention() == "off"
    assert attention(SPEED, "qwen2.5-0.5b") == "off"
    on_card = replace_rules(n_gpu_layers=0)
    assert attention(on_card, "llama-3.1-8b", CARD, RAM) == "off"
    assert attention(SPEED, "llama-3.1-8b", CARD, RAM) == "auto"


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
    kept = resolve(SPEED, model("llama-3.1-8b"), (RAM,))
    need = estimate(model("llama-3.1-8b"), kept, (RAM,)).total_bytes
    for left, expected in ((MIB, "off"), (-MIB, "auto")):
        tight = Device("CPU", "cpu", 32 * GIB, need + left)
        rules = replace_rules(margin_gib=0.0)
        assert attention(rules, "llama-3.1-8b", tight) == expected


def test_only_speed_is_worth_texts_that_drafts_may_change_at_near_ties() -> None:
    assert attention(Preset(name="mine", n_ctx=8192)) == "auto"
    for goal in ("balanced", "quality", "context"):
        rules = Preset(name="mine", goal=goal, n_ctx=8192, n_gpu_layers=0)
        assert attention(rules) == "auto"
