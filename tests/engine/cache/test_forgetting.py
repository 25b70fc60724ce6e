"""Forgetting one owner takes what only he used, and nothing of anyone else."""

from pathlib import Path

import pytest

from engine.cache.radix import StoredState
from engine.cache.snapshot_folder import ColdFolder
from engine.cache.snapshot_store import Forgotten, forget_owner
from engine.errors import CacheStoreError
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of


def kept(path: Path) -> dict[str, frozenset[str]]:
    with ColdFolder(path) as folder:
        return {entry.state.key: entry.state.owners for entry in folder.all_entries()}


def write(path: Path, *states: StoredState, elsewhere: StoredState | None = None) -> None:
    with ColdFolder(path) as folder:
        for state in states:
            folder.write(NAMESPACE, state, payload_of(state))
        if elsewhere is not None:
            folder.write(OTHER, elsewhere, payload_of(elsewhere))


def test_what_only_one_owner_used_goes_in_every_namespace_pinned_or_not(tmp_path: Path) -> None:
    shared = state_of((1, 2), owners=("chat:1", "chat:11"))
    own = state_of((1, 2, 3, 4), 2, owners=("chat:1",), is_pinned=True)
    theirs = state_of((1, 2, 5, 6), 2, owners=("chat:11",))
    nobody = state_of((9, 9), owners=())
    elsewhere = state_of((1, 2), namespace=OTHER, owners=("chat:1",))
    write(tmp_path, shared, own, theirs, nobody, elsewhere=elsewhere)
    forgotten = forget_owner(tmp_path, "chat:1")
    assert forgotten.n_states == 2
    assert forgotten.file_bytes > own.nbytes + elsewhere.nbytes
    assert kept(tmp_path) == {
        shared.key: frozenset({"chat:11"}),
        theirs.key: frozenset({"chat:11"}),
        nobody.key: frozenset(),
    }
    assert not (tmp_path / OTHER.key).exists()
    assert forget_owner(tmp_path, "chat:1") == Forgotten(0, 0)


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheStoreError):
        forget_owner(tmp_path / "file", "chat:1")
