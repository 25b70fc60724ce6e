import pytest

torch = pytest.importorskip("torch")

from engine.backends.torch.caches.base import CacheConfig, storage_bytes  # noqa: E402
from engine.backends.torch.caches.recurrent import RecurrentCache  # noqa: E402
from engine.errors import CropUnsupportedError, StateError  # noqa: E402
from tests.support.torch_device import DEVICE  # noqa: E402

CONFIG = CacheConfig(64, torch.float32, DEVICE)
SIZES = ((6, 3), (6, 4))


def new_cache(n_back: int = 3) -> RecurrentCache:
    return RecurrentCache(SIZES, CONFIG, n_back=n_back)


def advance(cache: RecurrentCache, n_tokens: int, step: float = 1.0) -> None:
    """A recurrence: each state is half of the one before and a step more."""
    for _ in range(n_tokens):
        cache.update([each / 2 + step for each in cache.state()])


def clone(cache: RecurrentCache) -> dict[str, torch.Tensor]:
    return {name: each.clone() for name, each in cache.held().items()}


def test_states_of_refuted_tokens_leave_no_trace() -> None:
    for n_refuted in range(4):
        cache, plain = new_cache(), new_cache()
        advance(cache, 9)
        advance(plain, 9)
        advance(cache, n_refuted, step=50.0)
        assert cache.can_crop(9)
        cache.crop(9)
        advance(cache, 3)
        advance(plain, 3)
        for one, other in zip(cache.state(), plain.state(), strict=True):
            assert torch.equal(one, other)


def test_states_that_are_gone_cannot_be_gone_back_to() -> None:
    cache = new_cache()
    advance(cache, 9)
    assert [length for length in range(11) if cache.can_crop(length)] == [0, 6, 7, 8, 9]
    with pytest.raises(CropUnsupportedError):
        cache.crop(5)
    cache.crop(7)
    assert not cache.can_crop(5)
    advance(cache, 1)
    assert [length for length in range(11) if cache.can_crop(length)] == [0, 6, 7, 8]
    cache.crop(0)
    assert all(not each.any() for each in cache.state())
    advance(cache, 1)
    assert cache.can_crop(0)


def test_its_bytes_do_not_grow() -> None:
    cache = new_cache()
    before = storage_bytes(cache.tensors())
    assert before == 4 * (18 + 24) * 4
    advance(cache, 30)
    assert storage_bytes(cache.tensors()) == before


def test_saved_states_go_on_as_they_would_have() -> None:
    cache, other = new_cache(), new_cache()
    advance(cache, 7)
    advance(other, 2, step=9.0)
    other.hold(clone(cache), 7)
    assert other.length == 7
    assert not other.can_crop(6)
    advance(cache, 2)
    advance(other, 2)
    assert torch.equal(cache.state()[1], other.state()[1])
    assert other.can_crop(8)
    with pytest.raises(StateError, match="another model"):
        RecurrentCache(((6, 3), (6, 5)), CONFIG, n_back=1).hold(clone(cache), 9)
