"""Whole states of models whose cache cannot be sliced."""

from tests.engine.cache.made_up import MemoryDisk, make_cache, n_cached, put, restored, work

LINE = list(range(100, 200))


def ends(cache) -> list[int]:
    return sorted(entry.n_tokens for entry in cache.report().entries)


def test_the_longest_state_within_a_prompt_is_restored():
    cache = make_cache(can_slice=False)
    put(cache, LINE[:40])
    put(cache, LINE[:60])
    assert restored(cache, LINE) == 60
    assert restored(cache, LINE[:59]) == 40
    assert restored(cache, LINE[:39]) == 0
    assert n_cached(cache, LINE[:59]) == 40


def test_the_newest_states_of_a_sequence_are_retained():
    disk = MemoryDisk()
    cache = make_cache(disk, can_slice=False)
    for end in range(10, 80, 10):
        put(cache, LINE[:end])
        work(cache)
    assert ends(cache) == [40, 50, 60, 70]
    assert cache.report().counts.n_evictions == 0
    work(cache)
    assert sorted(state.end for state in disk.segments()) == [40, 50, 60, 70]


def test_a_state_where_sequences_diverge_is_retained():
    cache = make_cache(can_slice=False)
    put(cache, LINE[:20])
    put(cache, [*LINE[:25], *range(300, 310)])
    for end in range(40, 90, 10):
        put(cache, LINE[:end])
    assert 20 in ends(cache)
    assert restored(cache, [*LINE[:20], 1, 2, 3]) == 20


def test_the_state_before_a_damaged_one_is_restored():
    disk = MemoryDisk()
    first = make_cache(disk, can_slice=False)
    put(first, LINE[:40])
    put(first, LINE[:60])
    first.close(1.0)
    second = make_cache(disk, can_slice=False)
    disk.damaged = {state.key for state in disk.segments() if state.end == 60}
    assert restored(second, LINE) == 40


def test_dropping_a_state_leaves_longer_ones():
    cache = make_cache(can_slice=False)
    put(cache, LINE[:40], owner="chat:1")
    put(cache, LINE[:60], owner="chat:2")
    key = next(entry.key for entry in cache.report().entries if entry.n_tokens == 40)
    cache.drop(key)
    assert restored(cache, LINE) == 60
    assert restored(cache, LINE[:50]) == 0
    cache.forget("chat:2")
    assert restored(cache, LINE) == 0
