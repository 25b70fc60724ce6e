"""What every cache of one layer must do, whatever it keeps."""

from collections.abc import Callable, Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load, save  # noqa: E402
from torch import Tensor  # noqa: E402

from engine.backends.torch.caches.base import (  # noqa: E402
    CacheConfig,
    KVCache,
    KVState,
    LayerShape,
    held_bytes,
    storage_bytes,
)
from engine.backends.torch.caches.saved import LENGTH, read_tensors, write_tensors  # noqa: E402
from engine.errors import ContextFullError, CropUnsupportedError, StateError  # noqa: E402

SHAPE = LayerShape(2, 64, 32)
CONFIG = CacheConfig(150, torch.float32, torch.device("cpu"), n_exact=20, n_back=12)

Make = Callable[[], KVCache]
Seen = tuple[Tensor, Tensor, Tensor]


def new_rows(n_tokens: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Keys with a channel that is always large, and values."""
    draws = torch.Generator().manual_seed(seed)
    keys = torch.randn(1, SHAPE.n_kv_heads, n_tokens, SHAPE.k_head_dim, generator=draws)
    keys[..., 5] += 9
    return keys, torch.randn(1, SHAPE.n_kv_heads, n_tokens, SHAPE.v_head_dim, generator=draws)


def append(cache: KVCache, rows: tuple[Tensor, Tensor], sizes: Sequence[int]) -> list[Seen]:
    """What each query sees while rows are appended in batches of these sizes."""
    start, seen = cache.length, []
    keys, values = rows
    at = 0
    for size in sizes:
        state = cache.update(keys[:, :, at : at + size], values[:, :, at : at + size])
        seen += [seen_by(state, start + at + index) for index in range(size)]
        at += size
    return seen


def seen_by(state: KVState, query: int) -> Seen:
    """The entries that a query sees, in the order of their positions."""
    mask = state.mask(torch.tensor([query]))[0]
    order = state.positions[mask].argsort(stable=True)
    return (
        state.positions[mask][order],
        state.keys[:, :, mask][:, :, order],
        state.values[:, :, mask][:, :, order],
    )


def assert_same(first: Seen, second: Seen) -> None:
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def reachable(thing: object) -> Iterator[Tensor]:
    """All tensors that an object of this package holds, however deep."""
    known: set[int] = set()
    waiting = [thing]
    while waiting:
        each = waiting.pop()
        if id(each) in known:
            continue
        known.add(id(each))
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple | set):
            waiting += each
        elif type(each).__module__.startswith("engine.backends.torch"):
            names = [*getattr(each, "__dict__", ()), *getattr(type(each), "__slots__", ())]
            waiting += [getattr(each, name) for name in names]


def saved_bytes(cache: KVCache) -> bytes:
    return write_tensors(cache.held(), cache.length)


def restore(cache: KVCache, saved: bytes | memoryview) -> None:
    cache.crop(0)
    cache.hold(*read_tensors(saved))


def with_length(saved: bytes, length: int) -> bytes:
    """Saved tensors with another number of tokens."""
    return save(load(saved) | {LENGTH: torch.tensor(length)})


class KVCacheContract:
    """Subclasses give a fixture `make`: empty caches of `SHAPE` and `CONFIG`, all of one kind."""

    def test_an_empty_cache_has_seen_nothing(self, make: Make) -> None:
        cache = make()
        assert cache.length == 0
        assert not cache.state().mask(torch.tensor([0])).any()

    def test_what_a_query_sees_does_not_depend_on_batches(self, make: Make) -> None:
        rows = new_rows(130)
        alone = append(make(), rows, [1] * 130)
        for sizes in ([130], [64, 1, 1, 9, 40, 15], [7] * 18 + [4]):
            for one, other in zip(alone, append(make(), rows, sizes), strict=True):
                assert_same(one, other)

    def test_a_query_sees_nothing_after_itself_and_always_itself(self, make: Make) -> None:
        for query, (positions, keys, values) in enumerate(append(make(), new_rows(130), [50, 80])):
            assert positions.max() == query
            assert len(positions.unique()) == len(positions)
            assert keys.shape == (1, SHAPE.n_kv_heads, len(positions), SHAPE.k_head_dim)
            assert values.shape == (1, SHAPE.n_kv_heads, len(positions), SHAPE.v_head_dim)
            assert keys.dtype == values.dtype == torch.float32

    def test_the_state_is_what_the_last_token_saw(self, make: Make) -> None:
        cache = make()
        for n_tokens, seen in enumerate(append(cache, new_rows(3), [3])[-1:], 3):
            assert_same(seen_by(cache.state(), n_tokens - 1), seen)
        seen = append(cache, new_rows(110), [60, 50])[-1]
        assert_same(seen_by(cache.state(), 112), seen)

    @pytest.mark.parametrize("n_held", [1, 40, pytest.param(130, marks=pytest.mark.slow)])
    def test_cropped_tokens_leave_no_trace(self, make: Make, n_held: int) -> None:
        rows, others = new_rows(130), new_rows(20, seed=1)
        n_cropped = 0
        lengths = {0, 1, 20, 31, 32, 33, 64, *range(n_held - CONFIG.n_back - 1, n_held + 1)}
        for length in sorted(each for each in lengths if 0 <= each <= n_held):
            cache = make()
            append(cache, rows, [n_held])
            if not cache.can_crop(length):
                continue
            n_cropped += 1
            cache.crop(length)
            assert cache.length == length
            fresh = make()
            if length:
                append(fresh, rows, [length])
                assert_same(seen_by(cache.state(), length - 1), seen_by(fresh.state(), length - 1))
            sizes = [1, 4, 15]
            for one, other in zip(
                append(cache, others, sizes), append(fresh, others, sizes), strict=True
            ):
                assert_same(one, other)
        assert n_cropped >= min(n_held, CONFIG.n_back) + 1

    def test_every_draft_can_be_rolled_back(self, make: Make) -> None:
        cache = make()
        append(cache, new_rows(130), [1] * 130)
        for length in range(130, 130 - CONFIG.n_back - 1, -1):
            assert cache.can_crop(length)

    def test_rounds_of_drafts_leave_the_committed_line(self, make: Make) -> None:
        """Drafts of up to `n_back` tokens, some of them accepted, over and over."""
        rows, refuted = new_rows(140), new_rows(CONFIG.n_back, seed=3)
        cache, plain = make(), make()
        alone = append(plain, rows, [1] * 140)
        length, turn = 0, 0
        while length < 138:
            n_accepted = turn % 4
            n_drafted = min(CONFIG.n_back - 1, n_accepted + turn % 7, 139 - length)
            n_accepted = min(n_accepted, n_drafted)
            committed = slice(length, length + 1 + n_accepted)
            batch = [
                torch.cat((right[:, :, committed], wrong[:, :, : n_drafted - n_accepted]), 2)
                for right, wrong in zip(rows, refuted, strict=True)
            ]
            state = cache.update(batch[0], batch[1])
            for query in range(length, length + 1 + n_accepted):
                assert_same(seen_by(state, query), alone[query])
            length += 1 + n_accepted
            cache.crop(length)
            turn += 1

    def test_a_length_that_cannot_be_cropped_to_is_refused(self, make: Make) -> None:
        cache = make()
        append(cache, new_rows(100), [100])
        before = seen_by(cache.state(), 99)
        refused = [length for length in range(-1, 103) if not cache.can_crop(length)]
        assert {-1, 101, 102} <= set(refused)
        for length in refused:
            with pytest.raises(CropUnsupportedError):
                cache.crop(length)
            assert cache.length == 100
        assert_same(seen_by(cache.state(), 99), before)

    def test_a_full_cache_takes_nothing(self, make: Make) -> None:
        cache = make()
        append(cache, new_rows(CONFIG.n_ctx - 1), [CONFIG.n_ctx - 1])
        with pytest.raises(ContextFullError):
            append(cache, new_rows(2), [2])
        assert cache.length == CONFIG.n_ctx - 1
        append(cache, new_rows(1), [1])
        assert cache.length == CONFIG.n_ctx

    def test_reported_bytes_are_the_allocated_ones(self, make: Make) -> None:
        cache = make()
        for n_tokens in (0, 3, 100):
            if n_tokens:
                append(cache, new_rows(n_tokens), [n_tokens])
            assert held_bytes([cache]) == storage_bytes(reachable(cache)) > 0

    @pytest.mark.parametrize("n_tokens", [0, 1, 31, 100])
    def test_a_saved_cache_goes_on_as_it_would_have(self, make: Make, n_tokens: int) -> None:
        cache, other = make(), make()
        append(other, new_rows(40, seed=5), [40])
        if n_tokens:
            append(cache, new_rows(n_tokens), [n_tokens])
        restore(other, memoryview(saved_bytes(cache)))
        assert other.length == n_tokens
        for one, two in zip(
            append(cache, new_rows(20, seed=2), [3, 17]),
            append(other, new_rows(20, seed=2), [3, 17]),
            strict=True,
        ):
            assert_same(one, two)

    def test_damaged_bytes_are_refused(self, make: Make) -> None:
        cache = make()
        append(cache, new_rows(40), [40])
        saved = saved_bytes(cache)
        broken = [saved[:size] for size in (0, 3, 9, 60, len(saved) // 2, len(saved) - 1)]
        broken += [saved + b"\0", with_length(saved, 41), with_length(saved, -1), b"\xff" * 40]
        for each in broken:
            with pytest.raises((StateError, ContextFullError)):
                restore(cache, each)
        restore(cache, saved)
        assert cache.length == 40

    def test_views_of_a_model_are_taken_as_they_lie(self, make: Make) -> None:
        """Keys come as `[batch, tokens, heads, dim]` turned round."""
        keys, values = new_rows(70)
        turned = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in (keys, values)]
        one, other = make(), make()
        for first, second in zip(
            append(one, (keys, values), [70]),
            append(other, (turned[0], turned[1]), [70]),
            strict=True,
        ):
            assert_same(first, second)
