"""Reading and prefetching: from where, how often, and what memory allows."""

import pytest

from engine.cache.prefix_cache import PrefixCache
from tests.engine.cache.made_up import MemoryDisk, make_cache, put, restored, state_of, work
from tests.support.clock import Clock

A = list(range(100, 150))
B = list(range(200, 250))


def with_one_on_disk(**settings) -> tuple[PrefixCache, MemoryDisk]:
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A[:20])
    put(first, A)
    first.close(1.0)
    return make_cache(disk, **settings), disk


def test_what_was_prefetched_is_in_memory_when_it_is_asked_for():
    cache, disk = with_one_on_disk()
    cache.prefetch([*A, 1, 2, 3])
    work(cache)
    n_reads = disk.n_reads
    with cache.match(A) as match:
        assert (match.n_warm, match.n_cold) == (50, 0)
        cache.read(match)
    assert disk.n_reads == n_reads == 2
    counts = cache.report().counts
    assert (counts.n_prefetches, counts.n_prefetches_used) == (2, 2)
    assert (counts.n_prefetches_wasted, counts.n_promotions) == (0, 2)


def test_a_prefetch_reads_no_more_than_memory_holds():
    cache, _ = with_one_on_disk(warm_bytes=30 * 4)
    cache.prefetch(A)
    work(cache)
    assert cache.report().tiers[0].n_tokens == 20
    low, _ = with_one_on_disk(available=lambda: 1000, reserve_bytes=1000 - 30 * 4)
    low.prefetch(A)
    work(low)
    assert low.report().tiers[0].n_tokens == 20


def test_what_is_matched_stays_in_memory_until_it_is_released():
    clock = Clock()
    disk = MemoryDisk()
    cache = make_cache(disk, clock=clock, warm_bytes=60 * 4)
    put(cache, A)
    work(cache)
    match = cache.match(A)
    clock.at += 1
    put(cache, B)
    work(cache)
    assert match.n_warm == 50
    cache.read(match)
    assert match.n_cold == 0
    match.release()
    match.release()
    assert cache.report().tiers[0].n_tokens == 50


@pytest.mark.parametrize(("anew", "n_read"), [(A, 50), ([*A[:33], *B], 33), (A[:15], 20)])
def test_a_line_that_changes_while_it_is_read_is_given_as_far_as_it_is_still_there(anew, n_read):
    cache, disk = with_one_on_disk()
    read = disk.read

    def interrupted(state):
        disk.read = read
        payload = read(state)
        cache.clear()
        put(cache, anew)
        return payload

    with cache.match(A) as match:
        disk.read = interrupted
        states = cache.read(match)
        assert match.n_tokens == n_read
        assert b"".join(states) == state_of(A[:n_read])


def test_short_memory_takes_from_the_warm_tier_before_the_machine_swaps():
    disk, clock = MemoryDisk(), Clock()
    free = [10**9]
    cache = make_cache(disk, clock=clock, reserve_bytes=1000, available=lambda: free[0])
    put(cache, A)
    clock.at += 1
    put(cache, B)
    work(cache)
    free[0] = 900
    clock.at += 3
    work(cache)
    report = cache.report()
    assert report.tiers[0].n_tokens == 50
    assert report.notes
    with cache.match(B) as match:
        assert match.n_warm == 50
    free[0] = 10_000
    clock.at += 3
    work(cache)
    assert restored(cache, A) == 50
    assert cache.report().tiers[0].n_tokens == 100


@pytest.mark.parametrize(
    ("n_hot", "n_warm", "n_cold", "n_computed", "outcome"),
    [
        (0, 300, 0, 16, (1, 0)),
        (0, 0, 300, 900, (1, 0)),
        (0, 0, 0, 16, (0, 1)),
        (99, 0, 0, 16, (0, 0)),
    ],
)
def test_a_prompt_is_a_hit_a_miss_or_was_in_the_context(n_hot, n_warm, n_cold, n_computed, outcome):
    cache = make_cache()
    cache.note_hit(n_hot=n_hot, n_warm=n_warm, n_cold=n_cold, n_computed=n_computed, saved_s=0.5)
    counts = cache.report().counts
    assert (counts.n_hits, counts.n_misses) == outcome
    found = (counts.n_hot_tokens, counts.n_warm_tokens, counts.n_cold_tokens)
    assert found == (n_hot, n_warm, n_cold)
    assert counts.n_computed_tokens == n_computed
    assert counts.saved_s == 0.5
