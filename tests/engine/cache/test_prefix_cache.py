"""The tiers over a disk in memory: what is put is found, whatever moved in between."""

import pytest

from engine.cache.radix import unpack
from engine.errors import StateError
from tests.engine.cache.made_up import (
    MemoryDisk,
    make_cache,
    n_kept,
    put,
    restored,
    state_of,
    work,
)
from tests.support.clock import Clock
from tests.support.waiting import wait_until

A = list(range(100, 150))
B = [*range(100, 130), *range(200, 220)]


def test_a_line_that_was_put_is_restored_token_for_token():
    cache = make_cache()
    assert put(cache, A)
    assert restored(cache, A) == 50
    assert restored(cache, [*A, 7]) == 50
    assert restored(cache, A[:20]) == 20
    assert restored(cache, [1, *A]) == 0


def test_the_shared_start_of_two_lines_lies_in_memory_once():
    cache = make_cache()
    put(cache, A)
    put(cache, B)
    warm, _ = cache.report().tiers
    assert warm.n_tokens == 70
    assert warm.nbytes == 70 * 4
    assert restored(cache, A) == 50
    assert restored(cache, B) == 50


def test_a_state_that_starts_too_early_is_cut_with_its_time_and_one_too_late_refused():
    disk = MemoryDisk()
    cache = make_cache(disk)
    put(cache, A, seconds=7.0)
    work(cache)
    assert [state.recompute_s for state in disk.states()] == [7.0]
    assert cache.put(B, 10, state_of(B, 10), recompute_s=4.0)
    work(cache)
    assert restored(cache, B) == 50
    (own,) = (state for state in disk.states() if unpack(state.packed)[-1] == B[-1])
    assert (own.start, own.recompute_s) == (30, 2.0), "half of what was saved was new"
    with pytest.raises(StateError, match="token 30"):
        cache.put([*A[:30], 9, 9, 9], 31, state_of([9, 9]), recompute_s=1.0)


def test_fewer_new_tokens_than_asked_for_are_not_kept():
    cache = make_cache(min_tokens=8)
    assert put(cache, A)
    assert not put(cache, [*A, *range(7)])
    assert put(cache, [*A, *range(8)])


def test_what_memory_has_no_room_for_comes_back_from_disk():
    disk = MemoryDisk()
    clock = Clock()
    cache = make_cache(disk, warm_bytes=60 * 4, clock=clock)
    put(cache, A)
    clock.at += 1
    put(cache, [*range(300, 350)])
    work(cache)
    warm, cold = cache.report().tiers
    assert warm.nbytes <= 60 * 4
    assert cold.n_tokens == 100
    match = cache.match(A)
    assert match.n_cold == 50
    cache.read(match)
    match.release()
    assert cache.report().counts.n_promotions == 1
    assert restored(cache, A) == 50


def test_a_split_of_what_is_only_on_disk_is_done_from_the_file():
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A)
    first.close(1.0)
    second = make_cache(disk)
    second.put(B, 30, state_of(B, 30), recompute_s=1.0)
    assert restored(second, A) == 50
    work(second)
    assert sum(len(payload) for _, payload in disk.files.values()) == 70 * 4
    assert restored(make_cache(disk), A) == 50


def test_a_damaged_file_shortens_the_match_and_takes_what_needs_it_along():
    disk = MemoryDisk()
    first = make_cache(disk)
    put(first, A[:20])
    put(first, A[:35])
    put(first, A)
    first.close(1.0)
    second = make_cache(disk)
    disk.damaged = {state.key for state in disk.states() if state.start == 20}
    with second.match(A) as match:
        assert match.n_tokens == 50
        states = second.read(match)
        assert match.n_tokens == 20
        assert b"".join(states) == state_of(A[:20])
    assert n_kept(second, A) == 20
    report = second.report()
    assert report.counts.n_refused == 1
    assert any(note.is_problem for note in report.notes)
    work(second)
    assert [state.end for state in disk.states()] == [20]


def test_a_thousand_chats_with_one_system_prompt_hold_it_once():
    shared = list(range(1000, 1300))
    cache = make_cache(warm_bytes=10**9)
    for chat in range(1000):
        put(cache, [*shared, *range(chat * 200 + 2000, chat * 200 + 2200)], owner=f"chat:{chat}")
    warm = cache.report().tiers[0]
    assert warm.n_tokens == 300 + 1000 * 200
    assert warm.nbytes == warm.n_tokens * 4
    assert restored(cache, [*shared, *range(2000 + 77 * 200, 2200 + 77 * 200)]) == 500


def test_what_no_tier_may_hold_is_not_kept():
    cache = make_cache(None, warm_bytes=0)
    assert not put(cache, A)
    assert n_kept(cache, A) == 0
    small = make_cache(None, warm_bytes=49 * 4)
    assert not put(small, A)
    assert n_kept(small, A) == 0


def test_the_background_writes_without_being_asked():
    disk = MemoryDisk()
    cache = make_cache(disk, in_background=True)
    put(cache, A)
    wait_until(lambda: disk.files)
    cache.close(5.0)
    assert [state.end for state in disk.states()] == [50]
