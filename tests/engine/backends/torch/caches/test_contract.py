import pytest

torch = pytest.importorskip("torch")

from collections.abc import Iterator  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402

from engine.backends.torch.caches.base import KVCache, LayerShape  # noqa: E402
from engine.backends.torch.caches.blocks import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.caches.codecs import FloatCodec, TokenCodec  # noqa: E402
from engine.backends.torch.caches.decoupled import (  # noqa: E402
    DecoupledCodecs,
    DecoupledShape,
    decoupled_cache,
)
from engine.backends.torch.caches.kinds import (  # noqa: E402
    FLOATS,
    make_caches,
)
from engine.backends.torch.caches.tracing import CacheTrace, TracingCache  # noqa: E402
from engine.memory.torch_caches import (  # noqa: E402
    DECOUPLED,
    KIVI,
    WHOLE_KINDS,
    KindName,
)
from tests.contracts.kv_cache import ROOM, SHAPE, KVCacheContract, Make  # noqa: E402

MIXED = (
    "rotated_q4_0",
    "channel_q8_0",
    "f16/q4_0",
    "q8_0/f32",
    "kivi2/f16",
    "q4_0/kivi4",
    "rotated_q4_0/q3",
    "f32/bf16",
)
QUICK = (
    "f16",
    "q8_0",
    "q3",
    "kivi4",
    "static",
    "paged",
    "tiered",
    "rotated_q4_0",
    "f16/q4_0",
    DECOUPLED,
)
"""One of each sort; `make test-all` tries the others too."""
AT_ONCE = ("q8_0", "q4_0", "kivi4", "f16/q4_1", "fp8")
"""Kinds that are tried without a window too, so that each row is read coded."""


def kind_of(name: str) -> KindName:
    type_k, _, type_v = name.partition("/")
    return KindName(type_k, type_v or type_k)


def one_cache(name: str, **changes: int | bool) -> KVCache:
    return make_caches(kind_of(name), [SHAPE], replace(ROOM, **changes))[0]


class TestEveryKind(KVCacheContract):
    @pytest.fixture(
        params=[
            pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
            for name in (*FLOATS, *BLOCK_FORMATS, *KIVI, DECOUPLED, *WHOLE_KINDS, *MIXED)
        ]
    )
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda: one_cache(request.param)


class TestWithoutAWindow(KVCacheContract):
    @pytest.fixture(params=AT_ONCE)
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda: one_cache(request.param, n_exact=0)


class TestSlidingLayers(KVCacheContract):
    @pytest.fixture(params=["f16", "f32", "q4_0", "f32/bf16"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        layer = replace(SHAPE, window=30)
        return lambda: make_caches(kind_of(request.param), [layer], ROOM)[0]


class TestTraced(KVCacheContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Make]:
        trace = CacheTrace(tmp_path / "trace.jsonl")
        yield lambda: TracingCache(one_cache("q4_0"), 0, trace)
        trace.close()


class TestDecoupled(KVCacheContract):
    @pytest.fixture
    def make(self) -> Make:
        shape = DecoupledShape(SHAPE.n_kv_heads, 32, 32, SHAPE.v_head_dim)
        codecs = DecoupledCodecs(
            TokenCodec(BLOCK_FORMATS["q4_0"], 32),
            TokenCodec(BLOCK_FORMATS["q8_0"], 32),
            FloatCodec(torch.float16, SHAPE.v_head_dim),
        )
        return lambda: decoupled_cache(
            shape, ROOM, codecs, n_exact=ROOM.n_exact, n_back=ROOM.n_back
        )


def test_mypy_knows_every_cache_as_one() -> None:
    caches: list[KVCache] = [one_cache(name) for name in ("f16", "static", "paged", "tiered")]
    assert all(each.length == 0 for each in caches)
    assert LayerShape(1, 2, 3).window is None
