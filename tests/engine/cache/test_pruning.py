"""The order of eviction from disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.eviction import eviction_order
from engine.cache.namespace import Namespace
from engine.cache.segments import Segment
from engine.cache.store import SegmentStore
from tests.engine.cache.making import NAMESPACE, payload_of, state_of

NOW = 1_700_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SegmentStore]:
    with SegmentStore(tmp_path / "states") as folder:
        yield folder


@pytest.fixture
def here(tmp_path: Path) -> Namespace:
    """A namespace whose model is there."""
    model = tmp_path / "here.gguf"
    model.touch()
    return Namespace("ef" * 16, str(model), ())


def leaving(*states: Segment) -> list[Segment]:
    order = eviction_order(
        states, may_go=lambda state: not state.is_pinned, is_useless=lambda _: False, now=NOW
    )
    return list(order)


def put(folder: SegmentStore, namespace: Namespace, *states: Segment) -> None:
    for state in states:
        folder.write(namespace, state, payload_of(state))


def keys_of(states: list[Segment]) -> list[str]:
    return [state.key for state in states]


def test_the_segment_that_saves_least_time_per_byte_is_evicted_first() -> None:
    cheap, dear = state_of([1], recompute_s=1.0), state_of([2], recompute_s=2.0)
    often, old = state_of([3], n_uses=9), state_of([4], used_at=NOW - 40_000)
    assert leaving(often, dear, old, cheap) == [old, cheap, dear, often]


def test_the_end_of_a_sequence_is_evicted_before_its_start() -> None:
    start = state_of([1, 2], recompute_s=0.1)
    end = state_of([1, 2, 3], 2, recompute_s=9.0)
    other = state_of([1, 2, 4], 2, recompute_s=8.0)
    assert leaving(start, end, other) == [other, end, start]


def test_the_segments_before_a_pinned_one_stay() -> None:
    start, middle = state_of([1, 2]), state_of([1, 2, 3], 2)
    pinned = state_of([1, 2, 3, 4], 3, parent=middle, is_pinned=True)
    free = state_of([1, 2, 3, 5], 3, parent=middle)
    assert leaving(start, middle, pinned, free) == [free]


def test_pruning_frees_the_requested_bytes_and_no_more(
    folder: SegmentStore, here: Namespace
) -> None:
    states = [state_of([n], namespace=here, recompute_s=1.0 + n) for n in range(5)]
    put(folder, here, *states)
    before = folder.nbytes
    gone = folder.prune(before // 5 + 1, now=NOW)
    assert keys_of(gone) == keys_of(states[:2])
    assert folder.nbytes == before - sum(state.nbytes for state in gone)


def test_states_of_a_deleted_model_are_evicted_first(folder: SegmentStore, here: Namespace) -> None:
    valid, orphan = state_of([1], namespace=here, recompute_s=0.1), state_of([1], recompute_s=99.0)
    put(folder, here, valid)
    put(folder, NAMESPACE, orphan)
    assert keys_of(folder.prune(1, now=NOW)) == keys_of([orphan])
    assert [each.namespace for each in folder.segments()] == [here.key]


def test_recently_used_states_survive_pruning_by_age_with_their_parents(
    folder: SegmentStore,
) -> None:
    start, end = state_of([1], used_at=NOW - 99), state_of([1, 2], 1, used_at=NOW)
    old = state_of([5], used_at=NOW - 99)
    put(folder, NAMESPACE, start, end, old)
    assert keys_of(folder.prune(10**9, now=NOW, used_before=NOW - 50)) == keys_of([old])


def test_states_in_use_stay_with_their_parents(folder: SegmentStore) -> None:
    start, end, free = state_of([1]), state_of([1, 2], 1), state_of([5])
    put(folder, NAMESPACE, start, end, free)
    assert keys_of(folder.prune(10**9, now=NOW, in_use={end.key})) == keys_of([free])
