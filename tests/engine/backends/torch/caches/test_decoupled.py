import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from engine.backends.torch.caches.base import CacheRoom, LayerShape, held_bytes  # noqa: E402
from engine.backends.torch.caches.blocks import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.caches.codecs import Codec, FloatCodec, SplitCodec, TokenCodec  # noqa: E402
from engine.backends.torch.caches.windowed import WindowedCache  # noqa: E402
from engine.backends.torch.model import attend, attend_split  # noqa: E402
from tests.support.torch_device import DEVICE  # noqa: E402

ROOM = CacheRoom(256, torch.float32, DEVICE)
WIDTHS = (32, 64)
"""Elements of the semantic part of a key, and of the geometric one."""


def decoupled_cache(semantic: Codec, geometric: Codec, values: Codec) -> WindowedCache:
    keys = SplitCodec((semantic, geometric), WIDTHS)
    shape = LayerShape(n_kv_heads=2, k_head_dim=sum(WIDTHS), v_head_dim=32)
    return WindowedCache("decoupled", shape, ROOM, (keys, values), n_exact=0, n_back=0)


def test_scores_are_sums_of_a_semantic_and_a_geometric_product() -> None:
    parts = tuple(FloatCodec(torch.float32, dim) for dim in WIDTHS)
    cache = decoupled_cache(*parts, FloatCodec(torch.float32, 32))
    semantic, geometric, values = (torch.randn(1, 2, 9, dim) for dim in (32, 64, 32))
    state = cache.update(torch.cat((semantic, geometric), -1), values)
    asks_what, asks_where = torch.randn(1, 4, 3, 32), torch.randn(1, 4, 3, 64)
    queries = torch.cat((asks_what, asks_where), -1).transpose(1, 2)
    read = attend(
        queries, state, state.mask(torch.arange(6, 9)), SplitCodec(parts, WIDTHS).scales()
    )
    assert read.shape == (1, 3, 4 * 32)
    found = read.view(1, 3, 4, 32).transpose(1, 2)
    for head in range(4):
        for row in range(3):
            kv, n_seen = head // 2, 7 + row
            scores = semantic[0, kv, :n_seen] @ asks_what[0, head, row] / math.sqrt(32)
            scores += geometric[0, kv, :n_seen] @ asks_where[0, head, row] / math.sqrt(64)
            expected = scores.softmax(0) @ values[0, kv, :n_seen]
            assert torch.allclose(found[0, head, row], expected, atol=1e-5)


def test_each_part_takes_the_bytes_of_its_own_type() -> None:
    cache = decoupled_cache(
        TokenCodec(BLOCK_FORMATS["q4_0"], 32),
        TokenCodec(BLOCK_FORMATS["q8_0"], 64),
        FloatCodec(torch.float16, 32),
    )
    assert held_bytes([cache]) == 256 * 2 * (18 + 2 * 34 + 2 * 32)


def test_attention_that_is_split_over_the_keys_is_that_of_torch() -> None:
    draws = torch.Generator().manual_seed(0)
    rows, keys, values = (torch.randn(2, 3, n, 16, generator=draws) for n in (4, 9, 9))
    mask = torch.arange(9) <= torch.arange(5, 9)[:, None]
    for seen in (None, mask):
        expected = scaled_dot_product_attention(rows, keys, values, seen, scale=0.3)
        assert torch.allclose(attend_split(rows, keys, values, seen, 0.3), expected, atol=1e-5)
