"""What a change would do is what it does."""

from dataclasses import replace

import pytest

from engine.planning.changes import Change, best_changes, changes, steps_of
from engine.planning.options import with_matched_types
from engine.planning.planner import Plan, Planner
from engine.planning.verdict import FitVerdict, verdict_of
from tests.engine.planning.models import DENSE, EXPERTS, HYBRID, WINDOWS, option_named, planned


def changes_of(plan: Plan, planner: Planner) -> dict[str, Change]:
    found = changes(plan, planner, planner.facts_of(plan.setup))
    return {each.label: each for each in best_changes(found)}


def gpu_bytes(plan: Plan) -> int:
    return sum(d.total_bytes for d in plan.estimate.devices if d.device.kind == "gpu")


@pytest.mark.parametrize("name", [DENSE, EXPERTS, HYBRID, WINDOWS])
def test_an_change_comes_true_when_its_setup_is_planned(name: str) -> None:
    plan, planner = planned(name, 12, n_ctx=32768)
    found = changes_of(plan, planner)
    assert found
    for change in found.values():
        after = planner.plan(change.setup)
        assert gpu_bytes(after) - gpu_bytes(plan) == change.delta_bytes
        assert (after.max_n_ctx or 0) - (plan.max_n_ctx or 0) == change.delta_n_ctx
        assert verdict_of(after.estimate, plan.setup.margin_bytes) is change.verdict


def test_what_makes_a_plan_fit_comes_first() -> None:
    plan, planner = planned(EXPERTS, 16)
    assert not plan.fits
    first, *_ = changes_of(plan, planner).values()
    assert first.verdict is FitVerdict.FITS
    assert first.label.startswith("experts of ")
    n_moved = first.setup.configuration.n_cpu_moe
    one_less = first.setup.with_values(n_cpu_moe=n_moved - 1)
    assert planner.plan(first.setup).fits
    assert not planner.plan(one_less).fits


def test_changes_name_no_experts_of_a_dense_model_and_no_layers_without_gpus() -> None:
    plan, planner = planned(DENSE, 6)
    assert not any("experts" in label for label in changes_of(plan, planner))
    plan, planner = planned(EXPERTS)
    assert not any("GPU" in label or "CPU" in label for label in changes_of(plan, planner))


def test_there_are_no_arrows_at_an_end_and_for_disabled_options() -> None:
    plan, planner = planned(DENSE, 12)
    facts = planner.facts_of(plan.setup)
    assert steps_of(option_named("n_gpu_layers"), plan, planner, facts).more is None
    idle = steps_of(option_named("n_cpu_moe"), plan, planner, facts)
    assert (idle.less, idle.more) == (None, None)


def test_a_step_that_llama_cpp_refuses_is_no_change() -> None:
    plan, planner = planned(DENSE, 12, type_v="q8_0")
    option = option_named("flash_attention")
    facts = planner.facts_of(plan.setup)
    refused = option.step(plan.setup, facts, -1)
    assert refused.configuration.flash_attention == "off"
    assert steps_of(option, plan, planner, facts).less is None


def test_where_keys_and_values_are_one_tensor_one_option_turns_both() -> None:
    plan, planner = planned("deepseek-v2-lite", 24)
    facts = planner.facts_of(plan.setup)
    step = steps_of(option_named("type_k"), plan, planner, facts).more
    assert step is not None
    assert (step.setup.configuration.type_k, step.setup.configuration.type_v) == ("bf16", "bf16")
    assert "values together" in option_named("type_v").disabled_reason(plan.setup, facts)
    dense, planner = planned(DENSE, 24)
    mixed = replace(dense.setup, configuration=replace(dense.setup.configuration, type_k="q8_0"))
    assert with_matched_types(mixed, planner.facts_of(mixed)) is mixed


@pytest.mark.parametrize(
    ("name", "gpus", "option"),
    [(EXPERTS, (24,), "n_cpu_moe"), (DENSE, (8, 8), "tensor_split"), (DENSE, (8, 8), "split_mode"),
     (WINDOWS, (12,), "swa_full")],
)  # fmt: skip
def test_an_option_that_counts_changes_the_estimate(
    name: str, gpus: tuple[float, ...], option: str
) -> None:
    plan, planner = planned(name, *gpus, n_ctx=16384)
    facts = planner.facts_of(plan.setup)
    found = option_named(option)
    assert found.disabled_reason(plan.setup, facts) == ""
    turned = found.step(plan.setup, facts, 1)
    after, before = planner.plan(turned).estimate.devices, plan.estimate.devices
    assert [d.total_bytes for d in after] != [d.total_bytes for d in before]


def test_packed_values_take_flash_attention_along_where_it_was_off() -> None:
    plan, planner = planned(DENSE, 24, flash_attention="off")
    facts, option = planner.facts_of(plan.setup), option_named("type_v")
    packed = option.parse(plan.setup, "q8_0")
    assert (packed.configuration.type_v, packed.configuration.flash_attention) == ("q8_0", "auto")
    wide = option.step(plan.setup, facts, 1)
    assert (wide.configuration.type_v, wide.configuration.flash_attention) == ("bf16", "off")
