"""What leaves a full disk first."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.disk_index import ColdEntry
from engine.cache.eviction import LeavingOrder
from engine.cache.namespace import Namespace
from engine.cache.radix import StoredState
from engine.cache.snapshot_folder import ColdFolder
from engine.cache.snapshot_store import ColdStore, prune
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of

NOW = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ColdFolder]:
    with ColdFolder(tmp_path / "states") as folder:
        yield folder


@pytest.fixture
def here(tmp_path: Path) -> Namespace:
    """A namespace whose model is there."""
    model = tmp_path / "here.gguf"
    model.touch()
    return Namespace("ef" * 16, str(model), ())


def leaving(*states: StoredState, orphaned: tuple[str, ...] = ()) -> list[StoredState]:
    entries = [ColdEntry(NAMESPACE.key, state, 1) for state in states]
    order = LeavingOrder(
        entries, may_go=lambda entry: not entry.state.is_pinned, orphaned=orphaned, now=NOW
    )
    return [entry.state for _, entry in order]


def put(folder: ColdFolder, namespace: Namespace, *states: StoredState) -> None:
    for state in states:
        folder.write(namespace, state, payload_of(state))


def test_what_spares_least_time_per_byte_leaves_first() -> None:
    cheap, dear = state_of([1], recompute_s=1.0), state_of([2], recompute_s=2.0)
    often, old = state_of([3], n_uses=9), state_of([4], used_at=NOW - 40_000)
    assert leaving(often, dear, old, cheap) == [old, cheap, dear, often]


def test_the_end_of_a_line_leaves_before_its_start() -> None:
    start = state_of([1, 2], recompute_s=0.1)
    end = state_of([1, 2, 3], 2, recompute_s=9.0)
    other = state_of([1, 2, 4], 2, recompute_s=8.0)
    assert leaving(start, end, other) == [other, end, start]


def test_the_start_of_a_pinned_line_stays() -> None:
    start, middle = state_of([1, 2]), state_of([1, 2, 3], 2)
    pinned, free = state_of([1, 2, 3, 4], 3, is_pinned=True), state_of([1, 2, 3, 5], 3)
    assert leaving(start, middle, pinned, free) == [free]


def test_an_end_whose_start_is_missing_leaves_first() -> None:
    whole, lost = state_of([7], recompute_s=0.1), state_of([1, 2, 3], 2, recompute_s=9.0)
    assert leaving(whole, lost) == [lost, whole]


def test_pruning_frees_what_is_asked_and_no_more(folder: ColdFolder, here: Namespace) -> None:
    states = [state_of([n], namespace=here, recompute_s=1.0 + n) for n in range(5)]
    put(folder, here, *states)
    before = folder.nbytes
    gone = prune(folder, before // 5 + 1, now=NOW)
    assert [entry.state for entry in gone] == states[:2]
    assert folder.nbytes == before - sum(entry.file_bytes for entry in gone)


def test_states_of_a_model_that_is_gone_leave_before_all_others(
    folder: ColdFolder, here: Namespace
) -> None:
    kept, orphan = state_of([1], namespace=here, recompute_s=0.1), state_of([1], recompute_s=99.0)
    put(folder, here, kept)
    put(folder, NAMESPACE, orphan)
    assert [entry.state for entry in prune(folder, 1, now=NOW)] == [orphan]
    assert [each.key for each in folder.namespaces()] == [here.key]
    assert not (folder.path / NAMESPACE.key).exists()


def test_what_was_used_lately_outlives_pruning_by_age_with_its_start(folder: ColdFolder) -> None:
    start, end = state_of([1], used_at=NOW - 99), state_of([1, 2], 1, used_at=NOW)
    old = state_of([5], used_at=NOW - 99)
    put(folder, NAMESPACE, start, end, old)
    gone = prune(folder, 10**9, now=NOW, older_than=NOW - 50)
    assert [entry.state for entry in gone] == [old]


def test_a_store_makes_room_among_others_only_and_below_a_worth_only(
    folder: ColdFolder, here: Namespace
) -> None:
    store = ColdStore(folder, OTHER)
    own = state_of([1], namespace=OTHER, recompute_s=1e-3)
    cheap = state_of([1], namespace=here, recompute_s=2e-3, nbytes=1024)
    dear = state_of([2], namespace=here, recompute_s=1024.0, nbytes=1024)
    put(folder, OTHER, own)
    put(folder, here, cheap, dear)
    freed = store.prune_elsewhere(10**9, below=-1.0, now=NOW)
    assert freed > cheap.nbytes
    assert [entry.state for entry in folder.entries(here.key)] == [dear]
    assert store.states() == [own]


def test_making_room_again_and_again_lists_others_once(
    folder: ColdFolder, here: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ColdStore(folder, OTHER)
    states = [state_of([n], namespace=here, recompute_s=2.0**n, nbytes=1024) for n in range(1, 5)]
    put(folder, here, *states)
    hour = 3600.0  # halves the worth of all
    assert store.prune_elsewhere(1, below=0.0, now=NOW) > 0
    with monkeypatch.context() as patch:
        patch.setattr(folder, "all_entries", lambda **_: pytest.fail("listed again"))
        assert store.prune_elsewhere(1, below=-8.1, now=NOW + 20) == 0
        assert store.prune_elsewhere(1, below=-7.9, now=NOW + 20) > 0
    assert store.prune_elsewhere(1, below=-7.9, now=NOW + hour) > 0
    assert store.prune_elsewhere(1, below=-7.1, now=NOW + hour) == 0
    assert [entry.state for entry in folder.entries(here.key)] == [states[3]]
