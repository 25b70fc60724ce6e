"""Runs on a disk that gives trouble: `python -m tests.engine.cache.hostile_disk HOW FOLDER`.

It ends with 0 where nothing is lost and every error says what to do, in a process of its own since
limits and users are a process'.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

import pytest

from engine.cache.radix import StoredState
from engine.cache.snapshot_store import SnapshotStore
from engine.errors import CacheStoreError
from tests.engine.cache.making import NAMESPACE, payload_of, state_of

NOBODY = 65534
SMALL = [state_of([n], nbytes=1000) for n in range(3)]
LARGE = state_of([99], nbytes=600_000)


def write_many(store: SnapshotStore, written: list[StoredState]) -> None:
    for n in range(100, 140):
        state = state_of([n], nbytes=LARGE.nbytes)
        store.write(NAMESPACE, state, payload_of(state))
        written.append(state)


def fill(path: Path) -> None:
    """Write until no space is left, then lose nothing and write again after room was made."""
    with SnapshotStore(path) as store:
        for state in SMALL:
            store.write(NAMESPACE, state, payload_of(state))
        written: list[StoredState] = []
        with pytest.raises(CacheStoreError, match=r"no space is left .*kvchat cache prune"):
            write_many(store, written)
        for state in (*SMALL, *written):
            assert store.read(state) == payload_of(state)
        assert len(store.states()) == len(SMALL) + len(written)
        assert not list(path.rglob("*.new"))
        store.delete([state.key for state in written])
        store.write(NAMESPACE, SMALL[0], payload_of(SMALL[0]))
    with SnapshotStore(path) as store:
        assert len(store.states()) == len(SMALL)


def fill_limited(path: Path) -> None:
    """Fill a disk on which no file may be larger than 300,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    fill(path)


def brim(path: Path) -> None:
    """On a disk without a free byte list what is there, and make room; one at a time may."""
    states = [state_of([n], nbytes=200_000) for n in range(3)]
    with SnapshotStore(path) as store:
        for state in states:
            store.write(NAMESPACE, state, payload_of(state))
    filler = path / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    with pytest.raises(CacheStoreError, match="no space is left"):
        SnapshotStore(path)
    with SnapshotStore(path, may_lock=True) as store:
        assert len(store.states()) == len(states)
        store.delete([states[0].key])
        store.prune(1, now=1.0)
        assert len(store.states()) == 1
    filler.unlink()
    with SnapshotStore(path) as store:
        assert len(store.states()) == 1
        assert store.take_notes() == ()


def read_only(path: Path) -> None:
    """Read and list in a folder that cannot be written, with an index and without."""
    with SnapshotStore(path) as store:
        for state in SMALL:
            store.write(NAMESPACE, state, payload_of(state))
            store.read(state)  # imports now what the other user may not read
    is_root = os.getuid() == 0  # whom no mode keeps from writing
    if is_root:
        for each in (path, *path.rglob("*")):
            os.chown(each, NOBODY, NOBODY)
    path.chmod(0o500)
    if is_root:
        os.setresuid(NOBODY, NOBODY, NOBODY)
    with SnapshotStore(path) as store:
        assert len(store.states()) == len(SMALL)
        for state in SMALL:
            assert store.read(state) == payload_of(state)
        refused = "cannot be written: make its folder"
        with pytest.raises(CacheStoreError, match=refused):
            store.write(NAMESPACE, LARGE, payload_of(LARGE))
        with pytest.raises(CacheStoreError, match=refused):
            store.delete([SMALL[0].key])
        assert store.read(SMALL[0]) == payload_of(SMALL[0])


if __name__ == "__main__":
    {"full": fill, "brim": brim, "limited": fill_limited, "read-only": read_only}[sys.argv[1]](
        Path(sys.argv[2])
    )
