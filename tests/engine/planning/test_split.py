import pytest

from engine.configuration import Configuration
from engine.memory.hardware import Device
from engine.memory.units import MIB
from engine.model.architecture import Model
from engine.planning.goals import Goal, SearchLimits
from engine.planning.search import SearchResult, search
from engine.planning.solve import even_split
from tests.engine.planning.shapes import RAM, dense_model, gpu

MARGIN = 512 * MIB


@pytest.fixture(scope="module")
def model_32b(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return dense_model(tmp_path_factory.mktemp("32b"), n_layers=64, d_hidden=5120,
                       d_feed_forward=25600, n_heads=40, n_vocab=151936)  # fmt: skip


def found(model: Model, sizes: tuple[float, ...], goal: Goal, **base: object) -> SearchResult:
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
    result = found(model_32b, sizes, Goal.CONTEXT)
    left = [d.left_bytes for d in result.estimate.devices if d.device.kind == "gpu"]
    assert min(left) >= MARGIN
    assert max(left) < MARGIN + 700 * MIB  # a layer with its cache


@pytest.mark.parametrize(
    ("goal", "sizes"), [(Goal.CONTEXT, (16, 8)), (Goal.SPEED, (16, 8)), (Goal.QUALITY, (24, 24))]
)
def test_a_split_is_only_taken_where_it_is_better(
    model_32b: Model, goal: Goal, sizes: tuple[float, ...]
) -> None:
    own = found(model_32b, sizes, goal)
    by_memory = found(model_32b, sizes, goal, tensor_split=sizes)
    assert own.configuration.n_gpu_layers == -1 or by_memory.configuration.n_gpu_layers != -1
    if goal is Goal.CONTEXT and own.configuration.n_gpu_layers == -1:
        assert own.configuration.n_ctx >= by_memory.configuration.n_ctx


def test_what_the_user_split_stays(model_32b: Model) -> None:
    assert found(model_32b, (24, 24), Goal.CONTEXT, tensor_split=(1.0, 3.0)).configuration \
        .tensor_split == (1.0, 3.0)  # fmt: skip
    one = found(model_32b, (24, 24), Goal.CONTEXT, split_mode="none")
    assert one.configuration.tensor_split == ()


def test_one_card_has_nothing_to_split(model_32b: Model) -> None:
    result = found(model_32b, (24,), Goal.CONTEXT)
    assert result.configuration.tensor_split == ()
    assert even_split(model_32b, result.estimate, MARGIN) is None


def test_a_full_card_is_not_split_to(model_32b: Model) -> None:
    full = Device("GPU 1", "gpu", gpu(8).total_bytes, 64 * MIB)
    result = search(
        model_32b, (gpu(24), full, RAM), Goal.CONTEXT, target="llama-server", margin_bytes=0
    )
    assert result.estimate.fits()
