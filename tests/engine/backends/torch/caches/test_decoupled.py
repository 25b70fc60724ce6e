import math

import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.base import CacheRoom, held_bytes  # noqa: E402
from engine.backends.torch.caches.blocks import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.caches.codecs import FloatCodec, TokenCodec  # noqa: E402
from engine.backends.torch.caches.decoupled import (  # noqa: E402
    DecoupledCodecs,
    DecoupledShape,
    decoupled_cache,
    decoupled_keys,
)
from engine.backends.torch.model import attend  # noqa: E402
from tests.torch_device import DEVICE  # noqa: E402

ROOM = CacheRoom(256, torch.float32, DEVICE)
SHAPE = DecoupledShape(n_kv_heads=2, semantic_dim=32, geometric_dim=64, v_head_dim=32)
F32 = DecoupledCodecs(*(FloatCodec(torch.float32, dim) for dim in (32, 64, 32)))


def test_scores_are_sums_of_a_semantic_and_a_geometric_product() -> None:
    cache = decoupled_cache(SHAPE, ROOM, F32, n_exact=0, n_back=0)
    semantic, geometric, values = (torch.randn(1, 2, 9, dim) for dim in (32, 64, 32))
    state = cache.update(decoupled_keys(semantic, geometric), values)
    asks_what, asks_where = torch.randn(1, 4, 3, 32), torch.randn(1, 4, 3, 64)
    queries = decoupled_keys(asks_what, asks_where).transpose(1, 2)
    read = attend(queries, state, state.mask(torch.arange(6, 9)), SHAPE.scales())
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
    codecs = DecoupledCodecs(
        TokenCodec(BLOCK_FORMATS["q4_0"], 32),
        TokenCodec(BLOCK_FORMATS["q8_0"], 64),
        FloatCodec(torch.float16, 32),
    )
    cache = decoupled_cache(SHAPE, ROOM, codecs, n_exact=0, n_back=0)
    assert held_bytes([cache]) == 256 * 2 * (18 + 2 * 34 + 2 * 32)
