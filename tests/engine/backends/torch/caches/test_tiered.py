from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.base import CacheConfig, LayerShape, held_bytes  # noqa: E402
from engine.backends.torch.caches.dense import DenseCache  # noqa: E402
from engine.backends.torch.caches.tiered import Tier, TieredCache, tiered_caches  # noqa: E402
from engine.errors import CacheStoreError  # noqa: E402
from tests.support.torch_device import DEVICE  # noqa: E402

N_LAYERS = 6
LAYER = LayerShape(2, 16, 16)
CONFIG = CacheConfig(64, torch.float32, DEVICE)
make = partial(DenseCache, LAYER, CONFIG, torch.float32, torch.float32)
LAYER_BYTES = held_bytes([make()])


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[list[TieredCache]]:
    caches = tiered_caches(
        [make] * N_LAYERS, tmp_path, device_bytes=2 * LAYER_BYTES, host_bytes=LAYER_BYTES
    )
    yield caches
    for cache in caches:
        cache.crop(0)  # closes the files


def tiers_of(layers: list[TieredCache]) -> list[Tier]:
    return [each.tier for each in layers]


def rows(layer: int, n_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    draws = torch.Generator().manual_seed(layer)
    return (
        torch.randn(1, 2, n_tokens, 16, generator=draws),
        torch.randn(1, 2, n_tokens, 16, generator=draws),
    )


def test_budgets_hold_while_layers_are_computed(layers: list[TieredCache]) -> None:
    for _ in range(3):
        for layer, cache in enumerate(layers):
            cache.update(*rows(layer, 20))
            tiers = tiers_of(layers)
            assert tiers[layer] is Tier.DEVICE
            assert tiers.count(Tier.DEVICE) <= 2
            n_host = sum(each.nbytes for each in layers if each.tier is Tier.HOST)
            most = max(each.nbytes for each in layers if each.tier is Tier.HOST)
            assert n_host <= LAYER_BYTES + most, "and the layer that was read ahead"
    assert Tier.DISK in tiers_of(layers)


def test_the_next_layer_is_read_ahead(layers: list[TieredCache]) -> None:
    for layer, cache in enumerate(layers):
        cache.update(*rows(layer, 60))
    away = next(i for i, tier in enumerate(tiers_of(layers)) if tier is Tier.DISK)
    before = layers[away - 1]
    if before.tier is Tier.DEVICE:
        before.demote()
    before.state()
    assert tiers_of(layers)[away] is not Tier.DISK


def test_a_layer_goes_down_and_up_by_hand(tmp_path: Path) -> None:
    cache = TieredCache(make, tmp_path)
    keys, values = rows(0, 9)
    cache.update(keys, values)
    seen = []
    for _ in range(3):
        seen.append((cache.tier, cache.length))
        cache.demote()
    assert seen == [(Tier.DEVICE, 9), (Tier.HOST, 9), (Tier.DISK, 9)]
    assert cache.tier is Tier.DISK
    assert cache.nbytes == 0
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    cache.promote()
    assert cache.tier is Tier.HOST
    assert 0 < cache.nbytes < LAYER_BYTES
    cache.promote()
    cache.promote()
    assert torch.equal(cache.state().keys, keys)


def test_a_folder_that_cannot_be_written_leaves_it_in_memory(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    cache = TieredCache(make, blocked)
    keys, values = rows(0, 9)
    cache.update(keys, values)
    cache.demote()
    with pytest.raises(CacheStoreError, match="cannot be written"):
        cache.demote()
    assert cache.tier is Tier.HOST
    assert torch.equal(cache.state().keys, keys)
