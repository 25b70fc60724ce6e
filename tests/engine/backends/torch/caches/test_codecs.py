import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.base import KVState  # noqa: E402
from engine.backends.torch.caches.codecs import (  # noqa: E402
    Codec,
    channel_codec,
    float_codec,
    mean_codec,
    part_scales,
    split_codec,
    token_codec,
)
from engine.backends.torch.caches.formats import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.model import attend  # noqa: E402

Q4_0, Q4_1 = BLOCK_FORMATS["q4_0"], BLOCK_FORMATS["q4_1"]


def rows(n_tokens: int, head_dim: int) -> torch.Tensor:
    return torch.randn(2, 3, n_tokens, head_dim, generator=torch.Generator().manual_seed(4))


def lost(codec: Codec, given: torch.Tensor) -> float:
    return float((codec.decode(codec.encode(given)) - given).pow(2).mean())


def test_large_channels_cost_least_by_channel() -> None:
    given = rows(64, 64)
    given[..., 7] += 30
    given[..., 40] -= 20
    assert lost(channel_codec(Q4_1, 64), given) < lost(token_codec(Q4_1, 64), given) / 4


def test_a_mean_is_that_of_its_tokens() -> None:
    given = rows(8, 32)
    codec = mean_codec(torch.float32, 32, 4)
    expected = torch.stack((given[:, :, :4].mean(2), given[:, :, 4:].mean(2)), 2)
    assert torch.allclose(codec.decode(codec.encode(given)), expected, atol=1e-6)


def test_each_part_of_a_split_row_is_stored_in_its_own_type() -> None:
    codec = split_codec([token_codec(Q4_0, 32), float_codec(torch.float32, 64)], (32, 64))
    given = rows(5, 96)
    read = codec.decode(codec.encode(given))
    assert codec.group_bytes == 18 + 4 * 64
    assert torch.equal(read[..., 32:], given[..., 32:])
    assert 0 < (read[..., :32] - given[..., :32]).abs().max() < 1


def test_scores_are_sums_of_a_semantic_and_a_geometric_product() -> None:
    semantic, geometric, values = (torch.randn(1, 2, 9, dim) for dim in (32, 64, 32))
    held = KVState(torch.cat((semantic, geometric), -1), values, torch.arange(9))
    queries = torch.randn(1, 3, 4, 96)
    read = attend(queries, held, held.mask(torch.arange(6, 9)), part_scales((32, 64)))
    found = read.view(1, 3, 4, 32)
    for head in range(4):
        for row in range(3):
            kv, n_seen = head // 2, 7 + row
            query = queries[0, row, head]
            scores = semantic[0, kv, :n_seen] @ query[:32] / 32**0.5
            scores += geometric[0, kv, :n_seen] @ query[32:] / 64**0.5
            expected = scores.softmax(0) @ values[0, kv, :n_seen]
            assert torch.allclose(found[0, row, head], expected, atol=1e-5)
