"""The tiers over real files."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.cache.snapshot_store import SnapshotStore
from tests.engine.cache.made_up import put, restored, split_state
from tests.engine.cache.making import OTHER, payload_of, state_of

NAMESPACE = Namespace("ab" * 16, "/models/one.gguf", (("K type", "f16"),))
A = list(range(100, 150))
B = [*range(100, 130), *range(200, 220)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SnapshotStore]:
    with SnapshotStore(tmp_path / "states") as folder:
        yield folder


def open_cache(folder: SnapshotStore, **settings: int) -> PrefixCache:
    return PrefixCache(
        NAMESPACE,
        can_slice=True,
        split_state=split_state,
        store=folder,
        settings=CacheSettings(min_tokens=1, **settings),
    )


def files(folder: SnapshotStore) -> list[Path]:
    return sorted(folder.path.glob("*.kv"))


def test_a_second_start_restores_from_real_files(folder):
    first = open_cache(folder)
    put(first, A, owner="chat:1")
    put(first, B, owner="chat:2")
    first.close(10.0)
    assert len(files(folder)) == 3
    second = open_cache(folder)
    with second.match(B) as match:
        assert match.n_cold == 50
    assert restored(second, B) == 50
    second.forget("chat:2")
    assert len(files(folder)) == 2
    second.close(10.0)


def test_two_processes_on_one_folder_give_only_true_states(folder):
    chance = random.Random(3)
    with SnapshotStore(folder.path) as other:
        budget = 10_000
        caches = [open_cache(each, cold_bytes=budget, warm_bytes=300) for each in (folder, other)]
        for _ in range(60):
            cache = chance.choice(caches)
            put(cache, [chance.randint(0, 1) for _ in range(chance.randint(1, 20))])
            restored(cache, [chance.randint(0, 1) for _ in range(20)])
        for cache in caches:
            cache.close(10.0)
        # Both may see the same room and write one state each into it.
        assert sum(path.stat().st_size for path in files(folder)) <= budget + 2000


def test_states_of_another_model_or_build_leave_for_those_of_this_one_by_the_budget_only(folder):
    other = [state_of([n], namespace=OTHER, nbytes=1000, recompute_s=1e-9) for n in range(3)]
    for state in other:
        folder.write(OTHER, state, payload_of(state))
    cache = open_cache(folder, cold_bytes=2300)
    put(cache, A)
    cache.close(10.0)
    assert len(folder.states(OTHER.key)) == 2
    assert len(folder.states(NAMESPACE.key)) == 1
