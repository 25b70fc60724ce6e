"""Cache types that a preset leaves open, settled on machines large and small."""

from dataclasses import replace

import pytest

from engine.configuration import Configuration, KVTypes
from engine.errors import PresetError
from engine.memory.estimate import DoesNotFitError, cache_bytes, estimate
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.planning.cache_types import open_types
from engine.planning.changes import best_changes, changes
from engine.planning.planner import Planner, Setup
from engine.planning.resolve import resolve
from engine.policy.known import Known
from engine.presets.preset import Preset
from tests.engine.planning.shapes import dense_model
from tests.engine.policy.reports import Q4, Q8, WHOLE, report

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


def test_the_fastest_measured_type_is_chosen_and_without_one_the_guess(small: Model) -> None:
    assert types(settled(small, GOOD)) == Q8
    assert types(settled(small, None)) == WHOLE


def test_the_next_kind_is_taken_where_the_model_does_not_fit_with_the_best(small: Model) -> None:
    fast = Known(report({Q8: 0.001}, {WHOLE: 90.0}), has_rates=True)
    roomy = settled(small, fast, n_ctx=32768)
    assert types(roomy) == WHOLE
    need = estimate(small, roomy, (cpu(),)).total_bytes
    tight = settled(small, fast, need + 400 * MIB, n_ctx=32768)  # 512 MiB are to stay free
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


def test_one_auto_takes_the_other_type_along_unless_it_is_given() -> None:
    def opened(**rules: object) -> tuple[object, object]:
        found = open_types(Preset.model_validate({"name": "x", **rules}))
        assert found is not None
        return found.type_k, found.type_v

    assert opened(type_k="auto") == opened(type_v="auto") == opened(kv_budget_gib=1) == (None, None)
    assert opened(type_k="auto", type_v="q8_0") == (None, "q8_0")
    assert opened(type_k="q5_1", kv_budget_gib=1) == ("q5_1", None)
    assert open_types(Preset(name="x", type_k="q8_0")) is None
    with pytest.raises(PresetError, match="remove the budget"):
        open_types(Preset(name="x", type_k="q8_0", type_v="q8_0", kv_budget_gib=1))


def test_a_goal_with_a_given_type_that_nothing_measured_keeps_is_refused(small: Model) -> None:
    with pytest.raises(PresetError, match="with q4_0 keys"):
        settled(small, GOOD, goal="context", type_k="q4_0")
    assert types(settled(small, GOOD, goal="context", type_k="q8_0")) == Q8


def test_a_change_that_was_measured_to_break_a_gate_is_not_proposed(small: Model) -> None:
    def labels(known: Known) -> set[str]:
        planner = Planner(here=(cpu(),), quality=lambda _: known)
        planner.add(small)
        setup = Setup(Configuration(small.file.path, 8192))
        plan = planner.plan(setup)
        return {
            each.label for each in best_changes(changes(plan, planner, planner.facts_of(setup)))
        }

    assert {"q8_0 K and V", "q4_0 K and V"} <= labels(Known())
    assert labels(GOOD) & {"q8_0 K and V", "q4_0 K and V"} == {"q8_0 K and V"}
