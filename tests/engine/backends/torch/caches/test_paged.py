import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.base import CacheConfig, LayerShape  # noqa: E402
from engine.backends.torch.caches.paged import BlockPool, BlockTable  # noqa: E402
from engine.errors import ContextFullError  # noqa: E402
from tests.support.torch_device import DEVICE  # noqa: E402

LAYERS = [LayerShape(2, 8, 4), LayerShape(1, 4, 4)]
CONFIG = CacheConfig(64, torch.float32, DEVICE)


def new_pool(n_blocks: int = 16) -> BlockPool:
    return BlockPool(LAYERS, CONFIG, n_blocks=n_blocks, dtype=torch.float32, block_size=4)


def fill(table: BlockTable, n_tokens: int, mark: float) -> None:
    """Append tokens whose rows are `mark`, in all layers."""
    for cache, layer in zip(table.caches(), LAYERS, strict=True):
        rows = torch.ones(1, layer.n_kv_heads, n_tokens, 1) * mark
        cache.update(
            rows.expand(-1, -1, -1, layer.k_head_dim), rows.expand(-1, -1, -1, layer.v_head_dim)
        )


def marks(table: BlockTable) -> list[list[float]]:
    """Of each layer the marks of its tokens."""
    return [cache.state().keys[0, 0, :, 0].tolist() for cache in table.caches()]


def test_blocks_are_taken_as_a_line_grows_and_given_back_when_it_shrinks() -> None:
    pool = new_pool()
    table = pool.open()
    for n_tokens, n_blocks in ((1, 1), (3, 1), (1, 2), (11, 4)):
        fill(table, n_tokens, 1.0)
        assert len(table.blocks) == n_blocks == pool.n_blocks - pool.n_free
    for cache in table.caches():
        cache.crop(5)
    assert len(table.blocks) == 2
    table.close()
    table.close()
    assert pool.n_free == pool.n_blocks


def test_a_fork_shares_blocks_until_one_is_written_to() -> None:
    pool = new_pool()
    first = pool.open()
    fill(first, 10, 1.0)
    second = first.fork(10)
    assert second.blocks == first.blocks
    assert pool.n_free == 13
    assert [pool.n_references(block) for block in first.blocks] == [2, 2, 2]
    fill(second, 1, 2.0)
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]
    fill(first, 1, 3.0)
    assert marks(first) == [[1.0] * 10 + [3.0]] * 2
    assert marks(second) == [[1.0] * 10 + [2.0]] * 2
    first.close()
    assert marks(second) == [[1.0] * 10 + [2.0]] * 2
    second.close()
    assert pool.n_free == pool.n_blocks


def test_a_full_pool_refuses_tokens() -> None:
    pool = new_pool(4)
    first, second = pool.open(), pool.open()
    fill(first, 10, 1.0)
    fill(second, 3, 2.0)
    with pytest.raises(ContextFullError, match="2 blocks"):
        fill(second, 6, 2.0)
    assert marks(second) == [[2.0] * 3] * 2
    first.close()
    fill(second, 6, 2.0)
    assert second.length == 9


def test_fragmentation_is_the_share_of_rows_that_nothing_fills() -> None:
    pool = new_pool()
    assert pool.fragmentation() == 0
    first = pool.open()
    fill(first, 5, 1.0)
    assert pool.fragmentation() == pytest.approx(3 / 8)
    second = first.fork(4)
    assert pool.fragmentation() == pytest.approx(3 / 8)
    fill(second, 1, 1.0)
    assert pool.fragmentation() == pytest.approx(6 / 12)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("grow", "crop", "fork", "close")), st.integers(0, 3), st.integers(0, 9)
        ),
        max_size=40,
    )
)
def test_lines_in_a_pool_are_what_lines_of_their_own_are(
    steps: list[tuple[str, int, int]],
) -> None:
    pool = new_pool(24)
    tables: list[BlockTable] = [pool.open()]
    lines: list[list[float]] = [[]]
    for number, (step, which, amount) in enumerate(steps):
        at = which % len(tables)
        table, line = tables[at], lines[at]
        match step:
            case "grow" if amount:
                try:
                    fill(table, amount, float(number))
                    line += [float(number)] * amount
                except ContextFullError:
                    pass
            case "crop":
                length = min(amount, len(line))
                for cache in table.caches():
                    cache.crop(length)
                del line[length:]
            case "fork" if len(tables) < 4:
                tables.append(table.fork(min(amount, len(line))))
                lines.append(line[:amount])
            case "close" if len(tables) > 1:
                table.close()
                del tables[at], lines[at]
        for each, expected in zip(tables, lines, strict=True):
            assert marks(each) == [expected] * 2
        held = {block for each in tables for block in each.blocks}
        assert pool.n_blocks - pool.n_free == len(held)
        for block in held:
            assert pool.n_references(block) == sum(block in each.blocks for each in tables)
