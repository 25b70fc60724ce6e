"""Cache types that a preset leaves open, settled on machines large and small."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, FlashAttention, KVTypes
from engine.errors import PresetError
from engine.memory.estimate import DoesNotFitError, cache_bytes, estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.planning.cache_types import open_types, type_rules, types_text
from engine.planning.kv_cache_planner import KVCachePlanner
from engine.planning.planner import Planner, Setup
from engine.planning.resolve import resolve
from engine.planning.space import with_pair
from engine.planning.what_if import what_ifs
from engine.policy.choice import BudgetError
from engine.policy.known import Known
from engine.presets.preset import Preset
from tests.engine.planning.shapes import dense_model
from tests.engine.policy.reports import Q4, Q8, WHOLE, compared_with_f32, report

AUTO = {"type_k": "auto", "type_v": "auto"}
GOOD = Known(report({Q8: 0.001, Q4: 0.4}, {Q8: 90.0}), has_rates=True)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return dense_model(tmp_path_factory.mktemp("1b"), n_layers=16, d_hidden=2048,
                       d_feed_forward=8192)  # fmt: skip


def cpu(free_bytes: int = 60 * GIB) -> Device:
    return Device("CPU", "cpu", 64 * GIB, free_bytes)


def settled(
    model: Model, known: Known | None, free: int = 60 * GIB, **rules: object
) -> Configuration:
    preset = Preset.model_validate({"name": "open", **AUTO, **rules})
    return resolve(preset, model, (cpu(free),), known=known)


def types(found: Configuration) -> KVTypes:
    return found.kv_types


def test_the_quickest_measured_kind_is_taken_and_without_one_the_guess(small: Model) -> None:
    assert types(settled(small, GOOD)) == Q8
    assert types(settled(small, None)) == WHOLE


def test_where_f32_was_compared_with_it_is_f16_with_the_reason(small: Model) -> None:
    known = Known(compared_with_f32(report({Q4: 0.4})))
    found = settled(small, known)
    assert types(found) == WHOLE
    told = types_text(found, known)
    assert told.startswith("cache unknown: f16, because no smaller type keeps the gates (q4_0: ")


def test_rates_of_another_machine_do_not_count(small: Model) -> None:
    slow = Known(report({Q8: 0.001}, {Q8: 10.0}))
    assert types(settled(small, slow)) == Q8  # the smallest that passes
    assert types(settled(small, replace(slow, has_rates=True))) == WHOLE


def test_the_next_kind_is_taken_where_the_model_does_not_fit_with_the_best(small: Model) -> None:
    quick = Known(report({Q8: 0.001}, {WHOLE: 90.0}), has_rates=True)
    roomy = settled(small, quick, n_ctx=32768)
    assert types(roomy) == WHOLE
    need = estimate(small, roomy, (cpu(),)).total_bytes
    tight = settled(small, quick, need + 400 * MIB, n_ctx=32768)  # 512 MiB are to stay free
    assert types(tight) == Q8


def test_where_no_kind_fits_the_longest_context_is_taken(small: Model) -> None:
    need = estimate(small, replace(settled(small, GOOD), n_ctx=2048), (cpu(),)).total_bytes
    found = settled(small, GOOD, need + 512 * MIB)
    assert types(found) == Q8
    assert 2048 <= found.n_ctx < 8192
    with pytest.raises(DoesNotFitError):
        settled(small, GOOD, 100 * MIB)


@pytest.mark.parametrize("n_ctx", [1024, 8192, "auto", "max"])
def test_the_cache_keeps_its_budget_with_every_context(small: Model, n_ctx: object) -> None:
    budget = 256 * MIB
    found = settled(small, GOOD, n_ctx=n_ctx, kv_budget_gib=budget / GIB)
    assert cache_bytes(small, found, (cpu(),), "kvchat") <= budget
    if n_ctx == "max":
        longer = replace(found, n_ctx=found.n_ctx + 256)
        assert cache_bytes(small, longer, (cpu(),), "kvchat") > budget


def test_a_budget_below_every_kind_that_passes_is_refused(small: Model) -> None:
    with pytest.raises(BudgetError, match="the smallest, q8_0, takes"):
        settled(small, GOOD, n_ctx=32768, kv_budget_gib=0.25)


def test_one_auto_takes_the_other_type_along_unless_it_is_given() -> None:
    def opened(**rules: object) -> tuple[object, object]:
        found = open_types(Preset.model_validate({"name": "x", **rules}))
        assert found is not None
        return found.type_k, found.type_v

    assert opened(type_k="auto") == opened(type_v="auto") == opened(kv_budget_gib=1) == (None, None)
    assert opened(type_k="auto", type_v="q8_0") == (None, "q8_0")
    assert opened(type_k="q5_1", kv_budget_gib=1) == ("q5_1", None)
    assert open_types(Preset(name="x", type_k="q8_0")) is None
    with pytest.raises(PresetError, match="leave out the budget"):
        open_types(Preset(name="x", type_k="q8_0", type_v="q8_0", kv_budget_gib=1))


def test_a_goal_with_a_given_type_that_nothing_measured_keeps_is_refused(small: Model) -> None:
    with pytest.raises(PresetError, match="no measured cache kind with keys of q4_0"):
        settled(small, GOOD, goal="context", type_k="q4_0")
    assert types(settled(small, GOOD, goal="context", type_k="q8_0")) == Q8


def test_options_become_rules() -> None:
    assert type_rules(None, None) == {}
    assert type_rules("auto", None) == AUTO
    assert type_rules("q8_0/q5_1", None) == {"type_k": "q8_0", "type_v": "q5_1"}
    assert type_rules(None, GIB) == {**AUTO, "kv_budget_gib": 1.0}
    with pytest.raises(PresetError, match="'q9' is no cache type"):
        type_rules("q9", None)


def test_the_reason_says_what_it_rests_on() -> None:
    whole = Configuration(Path("m.gguf"), 8192)
    packed = replace(whole, type_k="q8_0", type_v="q8_0")
    assert types_text(whole, Known()).startswith("cache guessed: f16; nothing was measured")
    assert types_text(packed, GOOD).startswith("cache measured: q8_0: 1.9x smaller")
    assert "though q8_0 would keep the gates" in types_text(whole, GOOD)
    bad = types_text(whole, Known(report({Q8: 0.4})))
    assert "because no smaller type keeps the gates (q8_0: " in bad
    unknown = types_text(replace(packed, type_v="q5_1"), GOOD)
    assert unknown == "cache unknown: q8_0/q5_1: not among the 3 kinds that were measured"


def test_a_change_that_was_measured_to_break_a_gate_is_not_proposed(small: Model) -> None:
    def labels(known: Known) -> set[str]:
        planner = Planner(here=(cpu(),), quality=lambda _: known)
        planner.add(small)
        setup = Setup(Configuration(small.file.path, 8192))
        plan = planner.plan(setup)
        return {each.label for each in what_ifs(plan, planner, planner.facts_of(setup))}

    assert {"q8_0 K and V", "q4_0 K and V"} <= labels(Known())
    assert labels(GOOD) & {"q8_0 K and V", "q4_0 K and V"} == {"q8_0 K and V"}


@pytest.mark.parametrize(
    ("flash", "pair", "searched"),
    [
        ("off", KVTypes("q8_0", "q5_1"), "off"),
        ("off", KVTypes("q8_0", "f16"), "off"),
        ("auto", KVTypes("q8_0", "q5_1"), "on"),
        ("auto", KVTypes("f16", "f16"), "auto"),
    ],
)
def test_a_pair_that_was_taken_has_flash_attention_where_its_values_need_it(
    flash: FlashAttention, pair: KVTypes, searched: FlashAttention
) -> None:
    configuration = Configuration(Path("m.gguf"), 8192, flash_attention=flash)
    changed = with_pair(configuration, pair)
    assert (changed.kv_types, changed.flash_attention) == (pair, searched)


def test_a_planner_of_a_script_wants_a_type_by_name() -> None:
    with pytest.raises(PresetError, match="type_k is 'auto': name a type"):
        KVCachePlanner(type_k="auto")
