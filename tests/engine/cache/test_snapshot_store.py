"""The cold tier of one namespace."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cache.disk_writer import ColdTier
from engine.cache.namespace import Namespace
from engine.cache.radix import pack
from engine.cache.snapshot_folder import ColdFolder
from engine.cache.snapshot_store import ColdStore, Forgotten, drop_other_builds
from engine.errors import StateError
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ColdFolder]:
    with ColdFolder(tmp_path / "states") as folder:
        yield folder


@pytest.fixture
def store(folder: ColdFolder) -> ColdStore:
    return ColdStore(folder, NAMESPACE)


def test_a_store_is_a_cold_tier(store: ColdStore) -> None:
    tier: ColdTier = store
    assert tier.states() == []
    assert tier.nbytes == 0


def test_what_was_written_is_read_bit_for_bit(folder: ColdFolder, store: ColdStore) -> None:
    state = state_of([1, 2, -3, 2**31 - 1])
    store.write(state, memoryview(payload_of(state)))
    assert store.read(state) == payload_of(state)
    assert store.states() == [state]
    takes = folder.file_of(NAMESPACE.key, state.key).stat().st_size
    assert store.nbytes == takes
    assert takes > state.nbytes


def test_a_state_outlives_a_restart_with_its_use_and_pin(tmp_path: Path) -> None:
    state = state_of(range(40))
    with ColdFolder(tmp_path) as folder:
        store = ColdStore(folder, NAMESPACE)
        store.write(state, payload_of(state))
        store.note_use(state.key, 1_800_000_000.0, 7, frozenset({"chat:1", "chat:2"}))
        store.pin(state.key, is_pinned=True)
    with ColdFolder(tmp_path) as folder:
        (found,) = ColdStore(folder, NAMESPACE).states()
    assert (found.used_at, found.n_uses, found.is_pinned) == (1_800_000_000.0, 7, True)
    assert found.owners == {"chat:1", "chat:2"}
    assert found.packed == pack(range(40))


def test_a_store_lists_and_reads_its_own_namespace_only(folder: ColdFolder) -> None:
    store, other = (ColdStore(folder, each) for each in (NAMESPACE, OTHER))
    state = state_of([1, 2, 3], namespace=OTHER)
    other.write(state, payload_of(state))
    assert store.states() == []
    with pytest.raises(StateError, match="is gone"):
        store.read(state)
    assert other.read(state) == payload_of(state)
    assert store.nbytes == other.nbytes > state.nbytes


def test_a_deleted_state_is_gone_and_deleting_it_again_is_no_error(store: ColdStore) -> None:
    state = state_of([1, 2, 3])
    store.write(state, payload_of(state))
    store.delete(state.key)
    store.delete(state.key)
    assert store.states() == []
    assert store.nbytes == 0
    with pytest.raises(StateError, match="is gone"):
        store.read(state)


def test_a_state_is_read_only_for_the_tokens_it_stands_for(store: ColdStore) -> None:
    state, longer = state_of([1, 2, 3]), state_of([1, 2, 3, 4])
    store.write(state, payload_of(state))
    with pytest.raises(StateError, match="other tokens"):
        store.read(replace(longer, key=state.key))
    assert store.states() == []


def test_states_of_other_builds_are_dropped_and_counted_once(folder: ColdFolder) -> None:
    formats = {
        "00" * 16: "llama.cpp state 2 00aa",
        "11" * 16: "llama.cpp state 2 00bb",
        "22" * 16: "llama.cpp state 2 00bb, not rotated",
        "33" * 16: "torch state 1, torch 2.4, f32, dense",
        "44" * 16: "made up by something else",
    }
    for key, text in formats.items():
        namespace = Namespace(key, "/models/one.gguf", (("format", text),))
        for is_pinned, tokens in enumerate(([1, 2], [3, 4, 5])):
            state = state_of(tokens, namespace=namespace, is_pinned=bool(is_pinned))
            folder.write(namespace, state, payload_of(state))
    nbytes = folder.nbytes
    gone = drop_other_builds(folder, "llama.cpp state 2 00bb")
    assert gone == Forgotten(2, nbytes - folder.nbytes)
    assert {entry.namespace for entry in folder.all_entries()} == set(list(formats)[1:])
    assert drop_other_builds(folder, "llama.cpp state 2 00bb") == Forgotten(0, 0)
    assert drop_other_builds(folder, "torch state 1, torch 2.4, f16, int4").n_states == 0
    assert drop_other_builds(folder, "torch state 1, torch 2.5, f32, dense").n_states == 2
