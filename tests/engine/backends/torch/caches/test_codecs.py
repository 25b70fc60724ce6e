import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.blocks import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.caches.codecs import (  # noqa: E402
    ChannelCodec,
    Codec,
    MeanCodec,
    SplitCodec,
    TokenCodec,
)

Q4_0, Q4_1 = BLOCK_FORMATS["q4_0"], BLOCK_FORMATS["q4_1"]


def rows(n_tokens: int, head_dim: int) -> torch.Tensor:
    return torch.randn(2, 3, n_tokens, head_dim, generator=torch.Generator().manual_seed(4))


def lost(codec: Codec, given: torch.Tensor) -> float:
    return float((codec.decode(codec.encode(given)) - given).pow(2).mean())


def test_large_channels_cost_least_by_channel() -> None:
    given = rows(64, 64)
    given[..., 7] += 30
    given[..., 40] -= 20
    assert lost(ChannelCodec(Q4_1, 64), given) < lost(TokenCodec(Q4_1, 64), given) / 4


def test_a_channel_s_block_is_that_of_its_tokens() -> None:
    given = rows(32, 64)
    codec = ChannelCodec(Q4_1, 64)
    coded = codec.encode(given)
    assert coded.shape == (2, 3, 1, 64 * Q4_1.nbytes)
    by_hand = Q4_1.quantise(given[1, 2, :, 17])
    assert torch.equal(coded[1, 2, 0, 17 * Q4_1.nbytes : 18 * Q4_1.nbytes], by_hand)


def test_a_mean_is_that_of_its_tokens() -> None:
    given = rows(8, 32)
    codec = MeanCodec(torch.float32, 32, 4)
    expected = torch.stack((given[:, :, :4].mean(2), given[:, :, 4:].mean(2)), 2)
    assert torch.allclose(codec.decode(codec.encode(given)), expected, atol=1e-6)


def test_parts_are_coded_each_by_its_own() -> None:
    given = rows(4, 96)
    first, second = TokenCodec(Q4_0, 64), TokenCodec(BLOCK_FORMATS["q8_0"], 32)
    codec = SplitCodec((first, second), (64, 32))
    assert codec.group_bytes == 2 * 18 + 34
    found = codec.decode(codec.encode(given))
    assert torch.equal(found[..., :64], first.decode(first.encode(given[..., :64])))
    assert torch.equal(found[..., 64:], second.decode(second.encode(given[..., 64:])))
