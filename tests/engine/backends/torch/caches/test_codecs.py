import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.blocks import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.caches.codecs import (  # noqa: E402
    ChannelCodec,
    Codec,
    MeanCodec,
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


def test_a_mean_is_that_of_its_tokens() -> None:
    given = rows(8, 32)
    codec = MeanCodec(torch.float32, 32, 4)
    expected = torch.stack((given[:, :, :4].mean(2), given[:, :, 4:].mean(2)), 2)
    assert torch.allclose(codec.decode(codec.encode(given)), expected, atol=1e-6)
