"""Each goal's answer against those of the other goals, and against what it names beside itself."""

import pytest

from engine.configuration import Configuration
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.kv_cache import with_types
from engine.memory.units import MIB
from engine.model.architecture import Model
from engine.planning.goals import Goal, Offload
from engine.planning.placements import Placement, placements
from engine.planning.search import SearchResult, search
from engine.planning.space import SPEED_TOLERANCE
from engine.policy.pairs import FAST_PAIRS
from tests.engine.planning.shapes import RAM, dense_model, gpu, moe_model

MARGIN = 512 * MIB
MODELS = {
    "dense": dense_model,
    "experts": moe_model,
    "few experts": lambda folder: moe_model(
        folder, n_layers=24, n_experts=16, n_experts_used=4, d_expert=3072, n_ctx_train=131072
    ),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    found: Model = MODELS[request.param](tmp_path_factory.mktemp("model"))  # type: ignore[operator]  # of one shape each
    return found


def slowness(model: Model, devices: tuple[Device, ...], configuration: Configuration) -> float:
    """How slow the layers of a configuration are where they lie."""
    wanted = (configuration.n_gpu_layers, configuration.n_cpu_moe)
    ladder = placements(model, devices, Offload.PARTIAL)
    return next(p.slowness for p in ladder if (p.n_gpu_layers, p.n_cpu_moe) == wanted)


def fastest(model: Model, devices: tuple[Device, ...], n_ctx: int, n_finest: int) -> float:
    """The least slowness at which a context fits with one of the first pairs of cache types."""
    types = FAST_PAIRS[n_finest - 1]

    def fits(placement: Placement) -> bool:
        configuration = Configuration(
            model.file.path, n_ctx, flash_attention="on", n_ubatch=128,
            n_gpu_layers=placement.n_gpu_layers, n_cpu_moe=placement.n_cpu_moe,
        )  # fmt: skip
        configuration = with_types(configuration, types)
        return estimate(model, configuration, devices, target="llama-server").fits(MARGIN)

    return next(p.slowness for p in placements(model, devices, Offload.PARTIAL) if fits(p))


def beats(goal: Goal, other: Configuration, answer: Configuration) -> bool:
    """Whether a configuration is better by what the goal says it looks for, in its order."""
    return _key(goal, other) > _key(goal, answer)


def _key(goal: Goal, now: Configuration) -> tuple[int, ...]:
    fineness = _fineness(now)
    match goal:
        case Goal.CONTEXT:
            return (now.n_ctx, fineness)
        case Goal.QUALITY:
            return (fineness, now.n_ubatch, now.n_ctx)
        case _:
            return (fineness, now.n_ubatch)


def _fineness(now: Configuration) -> int:
    return -FAST_PAIRS.index(now.kv_types)


@pytest.mark.parametrize("gib", [4, 6, 8, 10, 12, 16, 20, 24, 48])
def test_no_answer_is_beaten_in_its_own_order_by_another_one_or_by_what_it_names(
    model: Model, gib: int
) -> None:
    devices = (gpu(gib), RAM)
    answers: dict[Goal, SearchResult] = {
        goal: search(model, devices, goal, target="llama-server", margin_bytes=MARGIN)
        for goal in Goal
    }
    for goal in (Goal.CONTEXT, Goal.QUALITY, Goal.SPEED):
        answer = answers[goal].configuration
        others = [found.configuration for found in answers.values()]
        others += [each.configuration for found in answers.values() for each in found.alternatives]
        n_finest = 1 if goal is Goal.QUALITY else len(FAST_PAIRS)
        for other in (each for each in others if beats(goal, each, answer)):
            is_finer = goal is Goal.CONTEXT and _fineness(other) > _fineness(answer)
            n_ctx = answer.n_ctx if is_finer else 8192
            need = fastest(model, devices, n_ctx, n_finest)
            limit = need + SPEED_TOLERANCE if need else 0.0
            assert slowness(model, devices, other) > limit, (goal, answer, other)
