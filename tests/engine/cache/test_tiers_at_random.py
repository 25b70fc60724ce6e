"""Random lives of a cache: the books stay true, and no answer is ever wrong."""

import random
import threading

import pytest

from engine.backends.base import common_prefix
from engine.errors import CacheBudgetError, StateError
from tests.engine.cache.invariants import check
from tests.engine.cache.made_up import Clock, MemoryDisk, make_cache, put, restored, work


def some_line(chance: random.Random) -> list[int]:
    """Lines over two tokens share starts of every length."""
    return [chance.randint(0, 1) for _ in range(chance.randint(1, 24))]


def step(cache, disk, clock, chance, matches, lines) -> None:
    clock.at += chance.random() * 100
    tokens = some_line(chance)
    entries = cache.report().entries
    key = chance.choice(entries).key if entries else "0"
    match chance.randint(0, 13):
        case 0 | 1 | 2 | 3:
            put(cache, tokens, owner=f"chat:{chance.randint(1, 3)}", seconds=chance.random())
            lines.append(tokens)
        case 4:
            matches.append(cache.match(tokens))
        case 5 | 6:
            assert restored(cache, tokens) <= max(common_prefix(line, tokens) for line in lines)
        case 7:
            cache.prefetch(tokens)
        case 8 | 9:
            cache.work()
        case 10:
            if disk.files:
                disk.damaged.add(chance.choice(list(disk.files)))
        case 11:
            try:
                cache.pin(key) if chance.random() < 0.3 else cache.unpin(key)
            except (StateError, CacheBudgetError):
                return
        case 12:
            if matches:
                matches.pop(chance.randrange(len(matches))).release()
        case 13:
            if chance.random() < 0.3:
                cache.forget(f"chat:{chance.randint(1, 3)}")
            elif entries and chance.random() < 0.3:
                cache.drop(key)


def warm_beyond_pins(cache) -> int:
    """Bytes in main memory that no pin protects."""
    catalog = cache._core.catalog
    protected = {
        each
        for node in catalog.warm
        for each in catalog.tree.way(node)
        if node.value.is_pinned and each.value is not None
    }
    return sum(node.value.nbytes for node in catalog.warm if node not in protected)


@pytest.mark.parametrize("can_slice", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_random_lives_leave_true_books_and_true_states(can_slice, seed):
    chance, clock, disk = random.Random(seed), Clock(), MemoryDisk()
    sizes = {
        "warm_bytes": chance.choice([0, 100, 300, 10**6]),
        "cold_bytes": chance.choice([150, 400, 10**6]),
        "min_tokens": chance.choice([0, 1, 4]),
    }
    lines: list[list[int]] = [[]]
    for _ in range(3):
        cache = make_cache(disk, can_slice=can_slice, clock=clock, **sizes)
        check(cache, disk)
        matches = []
        for _ in range(80):
            step(cache, disk, clock, chance, matches, lines)
            check(cache, disk)
        for each in matches:
            each.release()
        check(cache, disk)
        for _ in range(2):
            clock.at += 5
            work(cache)
        check(cache, disk)
        assert disk.nbytes <= sizes["cold_bytes"]
        assert warm_beyond_pins(cache) <= sizes["warm_bytes"]
        assert not cache._core.catalog.spare
        assert all(node.n_locks == 0 for node in cache._core.catalog.tree.nodes())
        disk.damaged.clear()


@pytest.mark.parametrize("can_slice", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_a_start_after_a_kill_at_any_step_finds_only_true_states(can_slice, seed):
    """The files of a killed process are whatever was written up to that step."""
    chance, clock, disk = random.Random(seed), Clock(), MemoryDisk()
    lines: list[list[int]] = [[]]
    cache = make_cache(disk, can_slice=can_slice, clock=clock)
    for _ in range(60):
        step(cache, disk, clock, chance, [], lines)
        disk.damaged.clear()
        after = make_cache(disk_of(disk), can_slice=can_slice, clock=clock)
        check(after, None)
        for tokens in lines[-3:]:
            restored(after, tokens)
        work(after)
        check(after, None)


def disk_of(disk: MemoryDisk) -> MemoryDisk:
    copy = MemoryDisk()
    copy.files = dict(disk.files)
    return copy


@pytest.mark.parametrize("can_slice", [True, False])
def test_two_processes_on_one_folder_only_miss(can_slice):
    chance, clock, disk = random.Random(5), Clock(), MemoryDisk()
    caches = [
        make_cache(disk, can_slice=can_slice, clock=clock, cold_bytes=600, warm_bytes=200)
        for _ in range(2)
    ]
    lines: list[list[int]] = [[]]
    for _ in range(400):
        cache = chance.choice(caches)
        step(cache, disk, clock, chance, [], lines)
        check(cache, disk)


@pytest.mark.parametrize("can_slice", [True, False])
def test_threads_that_put_match_prefetch_and_evict_keep_the_books_true(can_slice):
    disk = MemoryDisk()
    cache = make_cache(
        disk, can_slice=can_slice, warm_bytes=400, cold_bytes=900, in_background=True
    )
    failures: list[BaseException] = []

    def live(seed: int) -> None:
        chance, clock, matches = random.Random(seed), Clock(), []
        lines = [[0, 1] * 12, [1, 0] * 12]
        try:
            for _ in range(400):
                tokens = some_line(chance)
                match chance.randint(0, 5):
                    case 0 | 1:
                        try:
                            put(cache, tokens, owner=f"chat:{seed}")
                        except StateError:
                            continue
                    case 2 | 3:
                        restored(cache, tokens)
                    case 4:
                        cache.prefetch(tokens)
                    case 5:
                        cache.forget(f"chat:{seed}")
        except BaseException as error:
            failures.append(error)
        del clock, matches, lines

    threads = [threading.Thread(target=live, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.close(5.0)
    assert not failures
    check(cache, disk)
