from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, KVTypes
from engine.errors import HardwareError, IncompatiblePairError, PresetError
from engine.memory.estimate import DoesNotFitError, cache_bytes
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.model.catalog import find_entry
from engine.planning.fit import SearchResult, explained
from engine.planning.offload import Offload
from engine.planning.search import Goal, Optimum, SearchLimits, search
from engine.policy.choice import Basis
from engine.policy.known import Known
from tests.engine.planning.shapes import RAM, dense_model, gpu
from tests.engine.policy.reports import Q4, Q8, WHOLE, report

MARGIN = 512 * MIB


@pytest.fixture(scope="module")
def model_8b(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return dense_model(tmp_path_factory.mktemp("8b"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return dense_model(tmp_path_factory.mktemp("1b"), n_layers=16, d_hidden=2048,
                       d_feed_forward=8192)  # fmt: skip


def found(model: Model, gib: float | None, goal: Goal, **changes: object) -> SearchResult:
    devices = (RAM,) if gib is None else (gpu(gib), RAM)
    settings: dict[str, object] = {"target": "llama-server", "margin_bytes": MARGIN, **changes}
    result = search(model, devices, goal, **settings)  # type: ignore[arg-type]
    known = changes.get("known", Known())
    return explained(result, goal, model, known)  # type: ignore[arg-type]


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("gib", [None, 6, 8, 12, 24, 48])
def test_what_is_found_fits_with_the_margin(model_8b: Model, gib: float | None, goal: Goal) -> None:
    result = found(model_8b, gib, goal)
    assert result.estimate.fits(MARGIN)
    assert result.configuration.n_ctx <= model_8b.architecture.n_ctx_train
    assert all(alternative.estimate.fits(MARGIN) for alternative in result.alternatives)
    assert not any("slow path" in warning for warning in result.estimate.warnings)


def test_context_quantises_the_cache_and_reports_the_gain(model_8b: Model) -> None:
    result = found(model_8b, 8, Goal.CONTEXT)
    assert result.configuration.type_k == result.configuration.type_v == "q4_0"
    types = next(each for each in result.settings if each.setting == "kv types")
    assert (types.chosen, types.best) == ("q4_0", "f16")
    more = SearchLimits(min_n_ctx=result.configuration.n_ctx + 256, offload=Offload.NONE)
    with pytest.raises(DoesNotFitError, match="GPU 0 needs"):
        found(model_8b, 8, Goal.CONTEXT, limits=more)
    whole = next(a for a in result.alternatives if a.label.startswith("f16 cache: "))
    assert types.gained_tokens == result.configuration.n_ctx - whole.estimate.n_ctx > 0


def test_a_draft_of_another_vocabulary_is_refused(model_8b: Model, tmp_path: Path) -> None:
    other = dense_model(tmp_path, n_layers=2, n_vocab=32000)
    with pytest.raises(IncompatiblePairError, match="more than 128 tokens"):
        found(model_8b, 24, Goal.SPEED, draft=other)


def test_a_draft_that_must_be_used_is(model_8b: Model, small: Model) -> None:
    always = SearchLimits(must_draft=True)
    assert found(model_8b, 8, Goal.CONTEXT, draft=small, limits=always).configuration.draft
    assert found(model_8b, 24, Goal.BALANCED, draft=small).configuration.draft
    with pytest.raises(PresetError, match="none is set"):
        found(model_8b, 8, Goal.CONTEXT, limits=always)


def test_a_model_that_does_not_fit_is_reported_with_the_shortage(model_8b: Model) -> None:
    poor = Device("CPU", "cpu", 2 * GIB, 2 * GIB)
    with pytest.raises(DoesNotFitError, match=r"CPU needs .* but has 2 GiB free"):
        search(model_8b, (gpu(2), poor), Goal.CONTEXT, target="kvchat", margin_bytes=MARGIN)


def test_what_llama_cpp_refuses_is_never_found(tmp_path: Path) -> None:
    odd = dense_model(tmp_path, d_hidden=1280, n_heads=16, n_kv_heads=16, n_layers=4)  # heads of 80
    result = found(odd, 4, Goal.CONTEXT)
    assert result.configuration.type_k == "f16"
    with pytest.raises(PresetError, match="blocks of 32"):
        found(odd, 4, Goal.CONTEXT, limits=SearchLimits(pairs=(KVTypes("q8_0", "q8_0"),)))


def test_impossible_requests_are_refused_with_the_reason(model_8b: Model) -> None:
    with pytest.raises(HardwareError, match="write 0 or more"):
        found(model_8b, 8, Goal.CONTEXT, margin_bytes=-1)
    with pytest.raises(HardwareError, match="no RAM"):
        search(model_8b, (gpu(8),), Goal.SPEED, target="kvchat", margin_bytes=0)
    with pytest.raises(PresetError, match="smallest context is 0 tokens"):
        SearchLimits(min_n_ctx=0)
    with pytest.raises(PresetError, match="exceeds the maximum"):
        SearchLimits(min_n_ctx=9000, max_n_ctx=8000)
    with pytest.raises(PresetError, match="'q9' is not a cache type"):
        KVTypes.parse("q9")


def test_unified_memory_holds_both_sides_at_once(model_8b: Model) -> None:
    pool = Device("CPU", "cpu", 16 * GIB, 9 * GIB)
    apart = (Device("GPU 0", "gpu", 9 * GIB, 9 * GIB), pool)
    unified = (replace(apart[0], is_unified=True), pool)
    together = search(model_8b, unified, Goal.QUALITY, target="kvchat", margin_bytes=MARGIN)
    assert together.estimate.total_bytes <= 9 * GIB - MARGIN
    more = search(model_8b, apart, Goal.QUALITY, target="kvchat", margin_bytes=MARGIN)
    assert more.configuration.n_ctx > together.configuration.n_ctx


def types_of(result: SearchResult) -> KVTypes:
    return result.configuration.kv_types


@pytest.mark.parametrize("goal", Goal)
def test_no_goal_takes_a_kind_that_broke_a_gate_on_this_model(small: Model, goal: Goal) -> None:
    known = Known(report({Q8: 0.4, Q4: 0.5}))
    for gib in (2, 3, 4, 8):
        result = found(small, gib, goal, known=known)
        assert types_of(result) == KVTypes("f16", "f16")
        assert result.quality.basis is Basis.MEASURED


def test_a_kind_that_keeps_the_gates_buys_context_where_the_guess_would_not_take_it(
    small: Model,
) -> None:
    guessed = found(small, 2, Goal.BALANCED)
    good = found(small, 2, Goal.BALANCED, known=Known(report({Q8: 0.00001, Q4: 0.0001})))
    assert types_of(good) == Q4
    assert types_of(guessed) != Q4
    assert guessed.quality.basis is Basis.GUESSED


@pytest.mark.parametrize("fastest", [Q8, WHOLE])
def test_speed_takes_the_type_that_was_measured_to_be_fastest(
    small: Model, fastest: KVTypes
) -> None:
    known = Known(report({Q8: 0.001}, {fastest: 90.0}), has_rates=True)
    assert types_of(found(small, None, Goal.SPEED, known=known)) == fastest


@pytest.mark.parametrize("goal", Goal)
def test_the_cache_of_no_goal_is_over_its_budget(small: Model, goal: Goal) -> None:
    for budget in (64 * MIB, 256 * MIB, 1 * GIB):
        limits = SearchLimits(min_n_ctx=256, cache_bytes=budget)
        result = found(small, 8, goal, limits=limits)
        kinds = (TermKind.KV, TermKind.STATE)
        held = sum(d.term(kind).nbytes for d in result.estimate.devices for kind in kinds)
        assert held <= budget
        devices = tuple(d.device for d in result.estimate.devices)
        assert held == cache_bytes(small, result.configuration, devices, "llama-server")


@pytest.fixture(scope="module")
def model_32b(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return dense_model(tmp_path_factory.mktemp("32b"), n_layers=64, d_hidden=5120,
                       d_feed_forward=25600, n_heads=40, n_vocab=151936)  # fmt: skip


def split_found(model: Model, sizes: tuple[float, ...], goal: Goal, **base: object) -> Optimum:
    cards = tuple(gpu(gib, index) for index, gib in enumerate(sizes))
    return search(
        model, (*cards, RAM), goal, target="llama-server", margin_bytes=MARGIN,
        base=Configuration(model.file.path, 256, **base),  # type: ignore[arg-type]
        limits=SearchLimits(max_n_ctx=262144),
    )  # fmt: skip


@pytest.mark.parametrize("sizes", [(16, 8), (8, 16), (12, 12), (10, 10, 10), (24, 8, 6)])
def test_unlike_cards_get_layers_that_fill_them_at_the_same_context(
    model_32b: Model, sizes: tuple[float, ...]
) -> None:
    result = split_found(model_32b, sizes, Goal.CONTEXT)
    left = [d.left_bytes for d in result.estimate.devices if d.device.kind == "gpu"]
    assert min(left) >= MARGIN
    assert max(left) < MARGIN + 700 * MIB  # a layer with its cache


@pytest.mark.parametrize(
    ("goal", "sizes"), [(Goal.CONTEXT, (16, 8)), (Goal.SPEED, (16, 8)), (Goal.QUALITY, (24, 24))]
)
def test_a_split_is_only_taken_where_it_is_better(
    model_32b: Model, goal: Goal, sizes: tuple[float, ...]
) -> None:
    own = split_found(model_32b, sizes, goal)
    by_memory = split_found(model_32b, sizes, goal, tensor_split=sizes)
    assert own.configuration.n_gpu_layers == -1 or by_memory.configuration.n_gpu_layers != -1
    if goal is Goal.CONTEXT and own.configuration.n_gpu_layers == -1:
        assert own.configuration.n_ctx >= by_memory.configuration.n_ctx


def test_more_memory_on_two_cards_never_gives_fewer_tokens() -> None:
    hybrid, found = find_entry("lfm2-1.2b").model(), []
    limits = SearchLimits(min_n_ctx=512, pairs=(KVTypes("q8_0", "q4_0"),), offload=Offload.NONE)
    for gib in (1, 1.05, 1.1, 1.15, 1.2):
        cards = (gpu(1.9 * gib), replace(gpu(1.15 * gib), name="GPU 1"), RAM)
        result = search(hybrid, cards, Goal.SPEED, margin_bytes=MARGIN, limits=limits)
        found.append(result.configuration.n_ctx)
    assert found == sorted(found)


def test_what_the_user_split_stays(model_32b: Model) -> None:
    assert split_found(model_32b, (24, 24), Goal.CONTEXT, tensor_split=(1.0, 3.0)).configuration \
        .tensor_split == (1.0, 3.0)  # fmt: skip
    one = split_found(model_32b, (24, 24), Goal.CONTEXT, split_mode="none")
    alone = split_found(model_32b, (24,), Goal.CONTEXT)
    assert one.configuration.tensor_split == alone.configuration.tensor_split == ()


def test_a_full_card_is_not_split_to(model_32b: Model) -> None:
    full = Device("GPU 1", "gpu", gpu(8).total_bytes, 64 * MIB)
    result = search(
        model_32b, (gpu(24), full, RAM), Goal.CONTEXT, target="llama-server", margin_bytes=0
    )
    assert result.estimate.fits()


@pytest.mark.parametrize("goal", [Goal.CONTEXT, Goal.QUALITY, Goal.BALANCED])
def test_more_memory_never_gives_fewer_tokens_or_bits(model_8b: Model, goal: Goal) -> None:
    results = [found(model_8b, gib, goal) for gib in (5, 6, 7, 8, 10, 12, 16)]
    if goal is Goal.QUALITY:
        bits = [each.configuration.type_k for each in results]
        assert bits == sorted(bits, key=["q4_0", "q8_0", "f16"].index)
    elif goal is Goal.CONTEXT:
        tokens = [each.configuration.n_ctx for each in results]
        assert tokens == sorted(tokens)
    else:
        layers = [each.configuration.n_gpu_layers % 100 for each in results]  # -1 is all
        assert layers == sorted(layers)
