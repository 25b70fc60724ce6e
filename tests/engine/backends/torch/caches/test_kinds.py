from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from app.cli.cache_quality import TORCH_TYPES, read_types  # noqa: E402
from engine.backends.torch.caches.base import CacheConfig, LayerShape, held_bytes  # noqa: E402
from engine.backends.torch.caches.kinds import make_caches  # noqa: E402
from engine.errors import ModelLoadError  # noqa: E402
from engine.memory.torch_caches import (  # noqa: E402
    BLOCK_BYTES,
    DECOUPLED,
    FLOAT_BYTES,
    KIVI,
    WHOLE_KINDS,
    CacheSpan,
    KindName,
    cache_bytes,
    kind_named,
    token_bytes,
)
from tests.support.torch_device import DEVICE  # noqa: E402

TENSOR_KINDS = (*FLOAT_BYTES, *BLOCK_BYTES, *KIVI, DECOUPLED)
LAYERS = [LayerShape(3, 64, 64)] * 4


def config(n_ctx: int) -> CacheConfig:
    return CacheConfig(n_ctx, torch.float32, DEVICE)


@pytest.mark.parametrize("name", [*TENSOR_KINDS, "paged", "means"])
def test_bytes_of_a_token_are_those_of_theory_within_a_hundredth(name: str) -> None:
    kind = KindName(name, name)
    held = [held_bytes(make_caches(kind, LAYERS, config(n_ctx))) for n_ctx in (4096, 8192)]
    assert (held[1] - held[0]) / 4096 == pytest.approx(token_bytes(kind, LAYERS), rel=0.01)


@pytest.mark.parametrize(
    ("name", "bits"),
    [("f32", 32), ("f16", 16), ("q8_0", 8.5), ("fp8", 8.5), ("q4_0", 4.5), ("q4_1", 5),
     ("nf4", 4.5), ("q3", 3.5), ("kivi4", 5), ("means", 4)],
)  # fmt: skip
def test_theory_counts_scales(name: str, bits: float) -> None:
    kind = KindName(name, name)
    assert token_bytes(kind, LAYERS) == 4 * 3 * 2 * 64 * bits / 8


@pytest.mark.parametrize("n_ctx", [40, 1500])
@pytest.mark.parametrize("name", [*TENSOR_KINDS, "paged", "means", "f16/q4_0", "kivi4/f32"])
@pytest.mark.parametrize("keeps_windows", [False, True])
def test_a_plan_s_bytes_are_those_that_are_allocated(
    name: str, n_ctx: int, keeps_windows: bool
) -> None:
    layers = [LayerShape(3, 64, 64), LayerShape(1, 128, 64, window=512)]
    type_k, _, type_v = name.partition("/")
    kind = KindName(type_k, type_v or type_k)
    made = make_caches(kind, layers, replace(config(n_ctx), keeps_windows=keeps_windows))
    span = CacheSpan(n_ctx, "f32", keeps_windows=keeps_windows)
    assert cache_bytes(kind, layers, span) == held_bytes(made)


@pytest.mark.parametrize("name", ["q8", "turbo", "channel_q4_0", "rotated_q4_0", "kivi2", ""])
def test_an_unknown_kind_is_an_error_that_lists_the_known_ones(name: str) -> None:
    for kind in (KindName(name, "f16"), KindName("f16", name)):
        with pytest.raises(ModelLoadError) as raised:
            make_caches(kind, LAYERS, config(64))
        for known in ("f16", "q8_0", "nf4", "kivi4", "paged", "tiered"):
            assert known in str(raised.value)


@pytest.mark.parametrize("name", WHOLE_KINDS)
def test_a_kind_of_keys_and_values_together_is_not_mixed(name: str) -> None:
    with pytest.raises(ModelLoadError, match="together"):
        make_caches(KindName(name, "f16"), LAYERS, config(64))


def test_heads_that_are_no_whole_blocks_are_refused_with_what_fits() -> None:
    odd = [LayerShape(2, 80, 80)]
    with pytest.raises(ModelLoadError, match=r"of 32.* 80"):
        make_caches(KindName("q4_0", "q4_0"), odd, config(64))
    assert make_caches(KindName("kivi4", "f16"), odd, config(64))
    assert make_caches(KindName("f16", "f16"), odd, config(64))


def test_the_usual_rows_of_the_laboratory_are_kinds_and_every_whole_one_is_among_them() -> None:
    usual = read_types(TORCH_TYPES, "torch")
    for types in usual:
        kind = kind_named(str(types), "f16", "f16", "f32")
        assert len(make_caches(kind, LAYERS, config(256))) == len(LAYERS)
    assert {*WHOLE_KINDS, *KIVI} <= {types.k for types in usual}
