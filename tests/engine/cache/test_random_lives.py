"""Random lives of a cache: budgets hold, and no restored state is ever wrong."""

import contextlib
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine.backends.base import common_prefix
from engine.cache.index import Match
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.cache.segments import unpack
from engine.cache.store import SegmentStore
from engine.errors import CacheBudgetError, StateError
from tests.engine.cache.made_up import NAMESPACE, MemoryDisk, make_cache, put, restored, work
from tests.engine.cache.making import OTHER, payload_of, state_of
from tests.support.clock import Clock

A = list(range(100, 150))
B = [*range(100, 130), *range(200, 220)]
both_kinds = pytest.mark.parametrize("can_slice", [True, False])


class Life:
    """What a session and a user may do, in any order, with sequences over two tokens."""

    def __init__(self, chance: random.Random, disk: MemoryDisk) -> None:
        self.chance = chance
        self.disk = disk
        self.clock = Clock()
        self.sequences: list[list[int]] = [[]]
        self.matches: list[Match] = []
        often = [self.put, self.put, self.put, self.read, self.read, self.work, self.work]
        self._acts = [*often, self.match, self.release, self.prefetch, self.damage, self.manage]

    def step(self, cache: PrefixCache) -> None:
        self.clock.at += self.chance.random() * 100
        self.chance.choice(self._acts)(cache)

    def sequence(self) -> list[int]:
        return [self.chance.randint(0, 1) for _ in range(self.chance.randint(1, 24))]

    def put(self, cache: PrefixCache) -> None:
        tokens = self.sequence()
        put(cache, tokens, owner=f"chat:{self.chance.randint(1, 3)}", seconds=self.chance.random())
        self.sequences.append(tokens)

    def read(self, cache: PrefixCache) -> None:
        tokens = self.sequence()
        n_known = max(common_prefix(each, tokens) for each in self.sequences)
        assert restored(cache, tokens) <= n_known

    def work(self, cache: PrefixCache) -> None:
        cache.work()

    def match(self, cache: PrefixCache) -> None:
        self.matches.append(cache.match(self.sequence()))

    def release(self, cache: PrefixCache) -> None:
        if self.matches:
            self.matches.pop(self.chance.randrange(len(self.matches))).release()

    def prefetch(self, cache: PrefixCache) -> None:
        cache.prefetch(self.sequence())

    def damage(self, cache: PrefixCache) -> None:
        if self.disk.files:
            self.disk.damaged.add(self.chance.choice(list(self.disk.files)))

    def manage(self, cache: PrefixCache) -> None:
        entries = cache.report().entries
        if not entries:
            return
        key = self.chance.choice(entries).key
        with contextlib.suppress(StateError, CacheBudgetError):
            match self.chance.randint(0, 5):
                case 0:
                    cache.pin(key)
                case 1 | 2:
                    cache.unpin(key)
                case 3:
                    cache.drop(key)
                case 4:
                    cache.verify(key)
                case 5:
                    cache.forget(f"chat:{self.chance.randint(1, 3)}")


def check(cache: PrefixCache, disk: MemoryDisk) -> None:
    """Compare the report with the files, and every file with its tokens."""
    report = cache.report()
    warm, cold = report.tiers
    for entry in report.entries:
        assert entry.tiers
        assert 0 <= entry.start < entry.n_tokens
    of_ram = [entry.nbytes for entry in report.entries if "warm" in entry.tiers]
    of_disk = [entry.nbytes for entry in report.entries if "cold" in entry.tiers]
    assert (warm.n_entries, warm.nbytes) == (len(of_ram), sum(of_ram))
    assert (cold.n_entries, cold.nbytes) == (len(of_disk), sum(of_disk))
    for segment, payload in list(disk.files.values()):
        assert payload == bytes(segment.packed)


@both_kinds
@pytest.mark.parametrize("seed", range(25))
def test_budgets_hold_and_files_and_states_are_right(can_slice, seed):
    chance, disk = random.Random(seed), MemoryDisk()
    life = Life(chance, disk)
    warm_bytes = chance.choice([0, 100, 300, 10**6])
    cold_bytes = chance.choice([150, 400, 10**6])
    for _ in range(3):
        cache = make_cache(
            disk, can_slice=can_slice, clock=life.clock, warm_bytes=warm_bytes,
            cold_bytes=cold_bytes,
        )  # fmt: skip
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
        entries = cache.report().entries
        assert disk.nbytes <= cold_bytes
        if not any(entry.is_pinned for entry in entries):
            assert cache.report().tiers[0].nbytes <= warm_bytes
        assert {entry.key for entry in entries if "cold" in entry.tiers} <= set(disk.files)
        assert set(disk.files) <= {entry.key for entry in entries}, "nothing else takes space"
        disk.damaged.clear()


@both_kinds
@pytest.mark.parametrize("seed", range(12))
def test_a_start_after_a_kill_at_any_step_finds_only_right_states(can_slice, seed):
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
        for tokens in life.sequences[-3:]:
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
def test_threads_that_put_match_prefetch_and_evict_get_only_right_states(can_slice):
    disk = MemoryDisk()
    cache = make_cache(
        disk, can_slice=can_slice, warm_bytes=400, cold_bytes=900, in_background=True
    )

    def live(seed: int) -> None:
        life = Life(random.Random(seed), disk)
        for _ in range(400):
            # The segment before may be forgotten before the put.
            with contextlib.suppress(StateError):
                put(cache, life.sequence(), owner=f"chat:{seed}")
            restored(cache, life.sequence())
            cache.prefetch(life.sequence())
            if life.chance.random() < 0.05:
                cache.forget(f"chat:{seed}")

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(live, (1, 2)))
    cache.close(5.0)
    check(cache, disk)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SegmentStore]:
    with SegmentStore(tmp_path / "states") as store:
        yield store


def open_cache(store: SegmentStore, **settings: int) -> PrefixCache:
    settings_of_tiers = CacheSettings(min_tokens=1, **settings)
    return PrefixCache(NAMESPACE, can_slice=True, store=store, settings=settings_of_tiers)


def files(store: SegmentStore) -> list[Path]:
    return sorted(store.path.glob("*.kv"))


def test_a_second_start_restores_from_real_files(store):
    first = open_cache(store)
    put(first, A[:30], owner="chat:1")
    put(first, A, owner="chat:1")
    put(first, B, owner="chat:2")
    first.close(10.0)
    assert len(files(store)) == 3
    second = open_cache(store)
    with second.match(B) as match:
        assert match.n_cold == 50
    assert restored(second, B) == 50
    second.forget("chat:2")
    assert [len(unpack(each.packed)) for each in store.segments()] == [30, 20]
    assert len(files(store)) == 2
    second.close(10.0)


def test_two_processes_on_one_folder_give_only_right_states(store):
    chance = random.Random(3)
    with SegmentStore(store.path) as other:
        budget = 10_000
        caches = [open_cache(each, cold_bytes=budget, warm_bytes=300) for each in (store, other)]
        for _ in range(60):
            cache = chance.choice(caches)
            put(cache, [chance.randint(0, 1) for _ in range(chance.randint(1, 20))])
            restored(cache, [chance.randint(0, 1) for _ in range(20)])
        for cache in caches:
            cache.close(10.0)
        # Both may see the same free space and write one state each into it.
        assert sum(path.stat().st_size for path in files(store)) <= budget + 2000


def test_states_of_another_model_or_build_are_evicted_for_new_ones_by_the_budget_only(store):
    other = [state_of([n], namespace=OTHER, nbytes=1000, recompute_s=1e-9) for n in range(3)]
    for segment in other:
        store.write(OTHER, segment, payload_of(segment))
    cache = open_cache(store, cold_bytes=2300)
    put(cache, A)
    cache.close(10.0)
    assert len(store.segments(OTHER.key)) == 2
    assert len(store.segments(NAMESPACE.key)) == 1
