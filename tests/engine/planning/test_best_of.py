"""The search against trying everything, on spaces that are small enough for it."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from engine.configuration import Configuration, DraftConfiguration
from engine.memory.estimate import estimator
from engine.memory.hardware import Device
from engine.memory.units import GIB, MIB
from engine.model.architecture import Model
from engine.planning.offload import Offload, offload_levels
from engine.planning.search import Goal, Point, Space, best_of
from engine.policy.pairs import FAST_PAIRS
from tests.engine.planning.shapes import dense_model, gpu, small_mixture

SMALL = {"n_layers": 4, "d_hidden": 512, "d_feed_forward": 2048, "n_heads": 8, "n_kv_heads": 8,
         "n_vocab": 8192, "n_ctx_train": 16384}  # fmt: skip
OFFLOADS = (Offload.PARTIAL, Offload.ANY)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Model, Model]:
    folder = tmp_path_factory.mktemp("models")
    tiny = {**SMALL, "n_layers": 2, "d_hidden": 256}
    return (
        dense_model(folder, **SMALL),
        small_mixture(folder),
        dense_model(folder, name="draft", **tiny),
    )


def space_of(model: Model, devices: tuple[Device, ...], draft: Model | None = None) -> Space:
    base = Configuration(model.file.path, n_ctx=256)
    if draft is not None:
        base = replace(base, draft=DraftConfiguration(draft.file.path, 256))
    return Space(
        base,
        estimator(model, devices, target="llama-server", draft=draft),
        levels=offload_levels(model, devices, Offload.PARTIAL),
        pairs=FAST_PAIRS,
        ubatches=(512, 128),
        drafts=(True, False) if draft else (False,),
        margin_bytes=8 * MIB,
        n_ctx_range=(1024, 5120),
    )


def best_of_all(space: Space, goal: Goal, offload: Offload) -> Point | None:
    """The greatest key of all candidates that fit, near the fastest level that fits."""
    fitting = [
        Point(choice, steps)
        for level, each in product(range(len(space.levels)), space.choices())
        for steps in range(space.least, space.most + 1)
        if space.free(choice := each._replace(level=level), steps).least >= 0
    ]
    if goal is Goal.QUALITY and fitting:
        finest = min(each.choice.pair for each in fitting)
        fitting = [each for each in fitting if each.choice.pair == finest]
    if fitting and goal is not Goal.BALANCED and offload is not Offload.ANY:
        found = near(space, fitting, space.least)
        if goal is Goal.CONTEXT:
            found = near(space, fitting, max(each.steps for each in found))
        fitting = found
    return max(fitting, key=lambda each: space.key(goal, each), default=None)


def near(space: Space, fitting: list[Point], steps: int) -> list[Point]:
    """The candidates near the fastest level that fits a context."""
    first, last = space.near(min(each.choice.level for each in fitting if each.steps >= steps))
    return [each for each in fitting if first <= each.choice.level <= last]


def check(space: Space) -> None:
    for goal, offload in product(Goal, OFFLOADS):
        expected = best_of_all(space, goal, offload)
        assert best_of(space, goal, offload) == expected, (goal, offload)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("mib", [60, 340, 365, 400, 700])
def test_the_search_finds_what_trying_everything_finds(
    models: tuple[Model, Model, Model], which: int, mib: int
) -> None:
    devices = (gpu(mib / 1024), Device("CPU", "cpu", GIB, GIB))
    check(space_of(models[which], devices))


@pytest.mark.parametrize("mib", [365, 500])
def test_a_draft_model_is_weighed_like_every_other_option(
    models: tuple[Model, Model, Model], mib: int
) -> None:
    devices = (gpu(mib / 1024), Device("CPU", "cpu", GIB, GIB))
    check(space_of(models[0], devices, models[2]))


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(
    which=st.integers(0, 1), first=st.integers(20, 500), second=st.just(0) | st.integers(20, 400),
    ram=st.integers(100, 300),
)  # fmt: skip
@example(which=0, first=363, second=0, ram=108)
@example(which=0, first=351, second=20, ram=108)
def test_any_memory_of_one_card_or_two_and_of_the_machine_is_used_best(
    models: tuple[Model, Model, Model], which: int, first: int, second: int, ram: int
) -> None:
    cards = [gpu(mib / 1024, index) for index, mib in enumerate((first, second)) if mib]
    check(space_of(models[which], (*cards, Device("CPU", "cpu", GIB, ram * MIB))))
