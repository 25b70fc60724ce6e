"""Random lives of a cache: the books stay true, and no answer is ever wrong."""

import contextlib
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.cache.prefix_cache import PrefixCache
from engine.errors import StateError
from tests.engine.cache.invariants import check
from tests.engine.cache.life import Life
from tests.engine.cache.made_up import MemoryDisk, make_cache, put, restored, work

both_kinds = pytest.mark.parametrize("can_slice", [True, False])


def warm_beyond_pins(cache: PrefixCache) -> int:
    """Bytes in main memory that no pin protects."""
    catalog = cache._catalog
    protected = {
        each
        for node in catalog.warm
        for each in catalog.tree.path(node)
        if node.value.state.is_pinned and each.value is not None
    }
    return sum(node.value.state.nbytes for node in catalog.warm if node not in protected)


@both_kinds
@pytest.mark.parametrize("seed", range(25))
def test_random_lives_leave_true_books_and_true_states(can_slice, seed):
    chance, disk = random.Random(seed), MemoryDisk()
    life = Life(chance, disk)
    warm_bytes = chance.choice([0, 100, 300, 10**6])
    cold_bytes = chance.choice([150, 400, 10**6])
    for _ in range(3):
        cache = make_cache(
            disk,
            can_slice=can_slice,
            clock=life.clock,
            warm_bytes=warm_bytes,
            cold_bytes=cold_bytes,
            min_tokens=chance.choice([0, 1, 4]),
        )
        check(cache, disk)
        for _ in range(80):
            life.step(cache)
            check(cache, disk)
        while life.matches:
            life.release(cache)
        for _ in range(2):
            life.clock.at += 5
            work(cache)
        check(cache, disk)
        assert disk.nbytes <= cold_bytes
        assert warm_beyond_pins(cache) <= warm_bytes
        assert not cache._catalog.unreferenced
        assert all(node.n_locks == 0 for node in cache._catalog.tree.nodes())
        disk.damaged.clear()


@both_kinds
@pytest.mark.parametrize("seed", range(12))
def test_a_start_after_a_kill_at_any_step_finds_only_true_states(can_slice, seed):
    """The files of a killed process are whatever was written up to that step."""
    disk = MemoryDisk()
    life = Life(random.Random(seed), disk)
    cache = make_cache(disk, can_slice=can_slice, clock=life.clock)
    for _ in range(60):
        life.step(cache)
        disk.damaged.clear()
        left = MemoryDisk()
        left.files = dict(disk.files)
        after = make_cache(left, can_slice=can_slice, clock=life.clock)
        check(after, left)
        for tokens in life.lines[-3:]:
            restored(after, tokens)
        work(after)
        check(after, left)


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Let threads interrupt one another a hundred times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(usual / 100)
    yield
    sys.setswitchinterval(usual)


@both_kinds
@pytest.mark.usefixtures("hasty_threads")
def test_threads_that_put_match_prefetch_and_evict_keep_the_books_true(can_slice):
    disk = MemoryDisk()
    cache = make_cache(
        disk, can_slice=can_slice, warm_bytes=400, cold_bytes=900, in_background=True
    )

    def live(seed: int) -> None:
        life = Life(random.Random(seed), disk)
        for _ in range(400):
            tokens = life.line()
            # What is kept may be evicted before the put that goes on from it.
            with contextlib.suppress(StateError):
                put(cache, tokens, owner=f"chat:{seed}")
            restored(cache, life.line())
            cache.prefetch(life.line())
            if life.chance.random() < 0.05:
                cache.forget(f"chat:{seed}")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(live, (1, 2)))
    cache.close(5.0)
    check(cache, disk)
