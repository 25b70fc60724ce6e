"""Commands of the user: pin, drop, verify, forget, clear."""

import pytest

from engine.errors import CacheBudgetError, StateError
from tests.engine.cache.made_up import (
    MemoryDisk,
    make_cache,
    put,
    restored,
    work,
)
from tests.support.clock import Clock

A = list(range(100, 150))
B = [*range(100, 130), *range(200, 220)]
C = list(range(300, 350))


def key_of(cache, end: int, owner: str) -> str:
    return next(
        entry.key
        for entry in cache.report().entries
        if entry.n_tokens == end and owner in entry.owners
    )


def two_chats(disk: MemoryDisk | None = None, **settings):
    cache = make_cache(disk, **settings)
    put(cache, A[:30])
    put(cache, A, owner="chat:1")
    put(cache, B, owner="chat:2")
    work(cache)
    return cache


def test_pinned_states_survive_states_of_more_worth():
    disk, clock = MemoryDisk(), Clock()
    cache = make_cache(disk, clock=clock, warm_bytes=0, cold_bytes=100 * 4)
    put(cache, A, owner="chat:1", seconds=0.001)
    work(cache)
    cache.pin(key_of(cache, 50, "chat:1"))
    for line in (C, [*range(400, 450)], [*range(500, 550)]):
        clock.at += 1
        put(cache, line)
        work(cache)
    assert restored(cache, A) == 50
    assert restored(make_cache(disk), A) == 50


def test_a_pin_counts_with_the_segments_before_it():
    disk = MemoryDisk()
    two_chats(disk).close(1.0)
    cache = make_cache(disk, cold_bytes=280)
    first, second = key_of(cache, 50, "chat:1"), key_of(cache, 50, "chat:2")
    cache.pin(first)
    cache.pin(second)
    cache.unpin(first)
    small = make_cache(disk, cold_bytes=279)
    with pytest.raises(CacheBudgetError, match="280 bytes"):
        small.pin(first)


def test_pins_outlive_a_restart_and_an_unpin_too():
    disk = MemoryDisk()
    cache = two_chats(disk)
    key = key_of(cache, 50, "chat:1")
    cache.pin(key)
    again = make_cache(disk)
    assert {entry.key for entry in again.report().entries if entry.is_pinned} == {key}
    again.unpin(key)
    assert not any(entry.is_pinned for entry in make_cache(disk).report().entries)


def test_a_dropped_segment_is_gone_from_every_tier_with_its_descendants():
    disk = MemoryDisk()
    cache = two_chats(disk)
    cache.drop(key_of(cache, 30, "chat:1"))
    assert not disk.files
    assert restored(cache, A) == 0
    with pytest.raises(StateError, match="No state"):
        cache.drop("0" * 16)


def test_forgetting_a_chat_drops_the_states_that_only_it_used():
    disk = MemoryDisk()
    cache = two_chats(disk)
    cache.forget("chat:1")
    assert restored(cache, A) == 30
    assert restored(cache, B) == 50
    assert sorted(state.end for state in disk.segments()) == [30, 50]
    assert all(entry.owners == ("chat:2",) for entry in cache.report().entries)
    cache.forget("chat:2")
    assert not disk.files
    assert restored(cache, B) == 0


def test_clearing_drops_pinned_states_and_those_of_other_processes():
    disk = MemoryDisk()
    cache = two_chats(disk)
    cache.pin(key_of(cache, 50, "chat:1"))
    other = make_cache(disk)
    put(other, C)
    other.close(1.0)
    cache.clear()
    assert not disk.files
    assert cache.report().entries == ()
    assert restored(cache, A) == 0


def test_verifying_a_damaged_file_drops_it():
    disk = MemoryDisk()
    two_chats(disk).close(1.0)
    cache = make_cache(disk)
    key = key_of(cache, 50, "chat:1")
    cache.verify(key)
    disk.damaged.add(key)
    with pytest.raises(StateError, match="damaged"):
        cache.verify(key)
    assert restored(cache, A) == 30
