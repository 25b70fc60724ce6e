import pytest

torch = pytest.importorskip("torch")

from dataclasses import replace  # noqa: E402

from engine.backends.torch.caches.base import KVCache, LayerShape  # noqa: E402
from engine.backends.torch.caches.formats import BLOCK_FORMATS  # noqa: E402
from engine.backends.torch.caches.kinds import FLOATS, make_caches  # noqa: E402
from engine.memory.torch_caches import DECOUPLED, KIVI, WHOLE_KINDS, kind_named  # noqa: E402
from tests.contracts.kv_cache import CONFIG, SHAPE, KVCacheContract, Make  # noqa: E402

MIXED = (
    "f16/q4_0",
    "q8_0/f32",
    "kivi4/f16",
    "q4_0/kivi4",
    "f32/bf16",
)
FAST = (
    "f16",
    "q8_0",
    "q3",
    "kivi4",
    "paged",
    "tiered",
    "f16/q4_0",
    DECOUPLED,
)
"""One of each sort; `make test-all` tries the others too."""


def one_cache(name: str, layer: LayerShape = SHAPE) -> KVCache:
    return make_caches(kind_named(name, "f16", "f16", "f32"), [layer], CONFIG)[0]


class TestEveryKind(KVCacheContract):
    @pytest.fixture(
        params=[
            pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
            for name in (*FLOATS, *BLOCK_FORMATS, *KIVI, DECOUPLED, *WHOLE_KINDS, *MIXED)
        ]
    )
    def make(self, request: pytest.FixtureRequest) -> Make:
        return lambda: one_cache(request.param)


class TestSlidingLayers(KVCacheContract):
    @pytest.fixture(params=["f16", "f32", "q4_0", "f32/bf16"])
    def make(self, request: pytest.FixtureRequest) -> Make:
        layer = replace(SHAPE, window=30)
        return lambda: one_cache(request.param, layer)
