"""Presets that are rules with a goal, on models such as people have."""

from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.estimate import DoesNotFitError, estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB
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
    with pytest.raises(PresetError, match="leave out n_gpu_layers and n_cpu_moe, or the goal"):
        resolve(rules, model("llama-3.1-8b"), machine(rules))


def test_a_draft_that_is_named_is_used_with_a_goal() -> None:
    rules = Preset(name="x", goal="speed")
    small = model("llama-3.2-1b")
    found = resolve(rules, model("llama-3.1-8b"), machine(rules), draft=small)
    assert found.draft is not None
    assert found.draft.n_ctx == min(found.n_ctx, 4096)
