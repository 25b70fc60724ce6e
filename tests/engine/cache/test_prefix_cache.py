"""Saved states over a disk in memory: what is put is found, whichever tier holds it."""

import pytest

from engine.cache.report import CacheStats
from engine.errors import StateError
from tests.engine.cache.made_up import (
    MemoryDisk,
    make_cache,
    n_cached,
    put,
    restored,
    state_of,
    work,
)
from tests.support.clock import Clock
from tests.support.waiting import wait_until

A = list(range(100, 150))
B = [*range(100, 130), *range(200, 220)]
C = list(range(300, 350))


def saved_in_two(**settings):
    """A cache after a restart, with `A` on disk as tokens 0 to 20 and 20 to 50."""
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A[:20])
    put(first, A)
    first.close(1.0)
    return make_cache(disk, **settings), disk


def test_a_saved_sequence_is_restored_token_for_token():
    cache = make_cache()
    assert put(cache, A)
    assert restored(cache, A) == 50
    assert restored(cache, [*A, 7]) == 50
    assert restored(cache, A[:20]) == 20
    assert restored(cache, [1, *A]) == 0
    assert not put(cache, A), "it is there"


def test_a_prompt_that_leaves_a_segment_half_way_loads_it_whole():
    cache = make_cache()
    put(cache, A)
    with cache.match([*A[:30], 7, 8]) as match:
        assert (match.n_tokens, match.n_whole) == (30, 0)
        assert match.tail == tuple(A[30:])
        assert b"".join(cache.read(match)) == state_of(A)
    put(cache, B)
    assert cache.report().tiers[0].n_tokens == 100
    assert restored(cache, A) == restored(cache, B) == 50


def test_a_segment_that_loads_slower_than_the_common_tokens_are_computed_is_not_restored():
    cache = make_cache()
    put(cache, A, seconds=1e-9)
    with cache.match([*A[:30], 7, 8]) as match:
        assert (match.n_tokens, match.n_known) == (0, 30)
    assert restored(cache, A) == 50


def test_a_segment_longer_than_the_context_is_not_restored():
    cache, _ = saved_in_two()
    with cache.match(A, max_end=49) as match:
        assert match.n_tokens == 20


def test_a_thousand_chats_with_one_system_prompt_hold_it_once():
    shared = list(range(1000, 1300))
    cache = make_cache(warm_bytes=10**9)
    put(cache, shared)
    for chat in range(1000):
        put(cache, [*shared, *range(chat * 200 + 2000, chat * 200 + 2200)], owner=f"chat:{chat}")
    warm = cache.report().tiers[0]
    assert warm.n_tokens == 300 + 1000 * 200
    assert warm.nbytes == warm.n_tokens * 4
    assert restored(cache, [*shared, *range(2000 + 77 * 200, 2200 + 77 * 200)]) == 500


def test_a_state_that_begins_where_no_segment_ends_is_refused():
    cache = make_cache()
    put(cache, A)
    for start in (10, 31):
        with pytest.raises(StateError, match=f"token {start}"):
            cache.put(B, start, state_of(B, start), recompute_s=1.0)


def test_states_without_space_in_ram_are_read_from_disk():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, warm_bytes=60 * 4, clock=clock)
    put(cache, A)
    clock.at += 1
    put(cache, C)
    work(cache)
    warm, cold = cache.report().tiers
    assert warm.nbytes <= 60 * 4
    assert cold.n_tokens == 100
    with cache.match(A) as match:
        assert match.n_cold == 50
        cache.read(match)
    assert cache.report().counts.n_promotions == 1
    assert restored(cache, A) == 50


def test_a_damaged_file_shortens_the_match_and_takes_its_descendants_along():
    disk = MemoryDisk()
    first = make_cache(disk)
    for end in (20, 35, 50):
        put(first, A[:end])
    first.close(1.0)
    second = make_cache(disk)
    disk.damaged = {segment.key for segment in disk.segments() if segment.start == 20}
    with second.match(A) as match:
        assert match.n_tokens == 50
        assert b"".join(second.read(match)) == state_of(A[:20])
        assert match.n_tokens == 20
    assert n_cached(second, A) == 20
    report = second.report()
    assert report.counts.n_refused == 1
    assert any(note.is_problem for note in report.notes)
    work(second)
    assert [segment.end for segment in disk.segments()] == [20]


def test_states_that_exceed_every_budget_are_not_cached():
    small = make_cache(None, warm_bytes=49 * 4)
    assert not put(small, A)
    assert n_cached(small, A) == 0


def test_a_new_state_displaces_older_ones_of_more_worth():
    cache = make_cache(None, warm_bytes=60 * 4)
    put(cache, A, seconds=1000.0)
    assert put(cache, C, seconds=0.001)
    assert (n_cached(cache, A), n_cached(cache, C)) == (0, 50)


def test_the_background_thread_writes_states_and_reports_a_fault(thread_faults):
    class Faulty(MemoryDisk):
        n_faults = 1

        def write(self, namespace, segment, payload):
            if self.n_faults:
                self.n_faults -= 1
                raise PermissionError("a folder that may not be looked into")
            super().write(namespace, segment, payload)

    disk = Faulty()
    cache = make_cache(disk, in_background=True)
    put(cache, A)
    wait_until(lambda: thread_faults)
    put(cache, C)
    wait_until(lambda: disk.files)
    (fault,) = thread_faults
    (note,) = [note for note in cache.report().notes if note.is_problem]
    assert fault.reference in note.text
    cache.close(5.0)
    assert len(disk.files) == 2


def test_a_prefetched_sequence_is_in_ram_when_it_is_asked_for():
    cache, disk = saved_in_two()
    cache.prefetch([*A, 1, 2, 3])
    work(cache)
    n_reads = disk.n_reads
    with cache.match(A) as match:
        assert (match.n_warm, match.n_cold) == (50, 0)
        cache.read(match)
    assert disk.n_reads == n_reads == 2
    counts = cache.report().counts
    assert (counts.n_prefetches, counts.n_promotions) == (2, 2)


def test_a_prefetch_into_full_ram_displaces_older_states():
    cache, _ = saved_in_two(warm_bytes=60 * 4)
    put(cache, C)
    work(cache)
    cache.prefetch(A)
    work(cache)
    with cache.match(A) as match:
        assert match.n_cold == 0


@pytest.mark.parametrize(
    "settings",
    [{"warm_bytes": 30 * 4}, {"available": lambda: 1000, "reserve_bytes": 1000 - 30 * 4}],
)
def test_a_prefetch_reads_no_more_than_ram_holds(settings):
    cache, _ = saved_in_two(**settings)
    cache.prefetch(A)
    work(cache)
    assert cache.report().tiers[0].n_tokens == 20


def test_matched_states_stay_in_ram_until_they_are_released():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, clock=clock, warm_bytes=60 * 4)
    put(cache, A)
    work(cache)
    match = cache.match(A)
    clock.at += 1
    put(cache, C)
    work(cache)
    cache.read(match)
    assert (match.n_warm, match.n_cold) == (50, 0)
    match.release()
    match.release()
    assert cache.report().tiers[0].n_tokens == 50


def test_states_that_are_cleared_while_they_are_read_are_right_or_missing():
    cache, disk = saved_in_two()
    read = disk.read

    def interrupted(segment):
        disk.read = read
        payload = read(segment)
        cache.clear()
        return payload

    disk.read = interrupted
    assert restored(cache, A) == 20
    assert n_cached(cache, A) == 0


def test_low_memory_shrinks_the_warm_tier():
    disk, clock = MemoryDisk(), Clock()
    free = [10**9]
    cache = make_cache(disk, clock=clock, reserve_bytes=1000, available=lambda: free[0])
    put(cache, A)
    clock.at += 1
    put(cache, C)
    work(cache)
    free[0] = 900
    clock.at += 3
    work(cache)
    report = cache.report()
    assert report.tiers[0].n_tokens == 50
    assert report.notes
    with cache.match(C) as match:
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
    stats = CacheStats(lambda: 0.0)
    stats.count_prompt(
        n_hot=n_hot, n_warm=n_warm, n_cold=n_cold, n_computed=n_computed, saved_s=0.5
    )
    counts = stats.counts
    assert (counts.n_hits, counts.n_misses) == outcome
    found = (counts.n_hot_tokens, counts.n_warm_tokens, counts.n_cold_tokens)
    assert found == (n_hot, n_warm, n_cold)
    assert counts.n_computed_tokens == n_computed
    assert counts.saved_s == 0.5
