"""Uses a disk that refuses operations: `python -m tests.engine.cache.hostile_disk HOW FOLDER`.

It ends with 0 where nothing is lost and every error advises, in a process of its own because
limits and users are a process'.
"""

import contextlib
import os
import resource
import sys
from pathlib import Path

import pytest

from engine.cache.segments import Segment
from engine.cache.store import SegmentStore
from engine.errors import CacheStoreError
from tests.engine.cache.making import NAMESPACE, payload_of, state_of

NOBODY = 65534
SMALL = [state_of([n], nbytes=1000) for n in range(3)]
LARGE = state_of([99], nbytes=600_000)


def write_many(store: SegmentStore, written: list[Segment]) -> None:
    for n in range(100, 140):
        state = state_of([n], nbytes=LARGE.nbytes)
        store.write(NAMESPACE, state, payload_of(state))
        written.append(state)


def fill(path: Path) -> None:
    """Write until no space is left, then lose nothing and write again after space was freed."""
    with SegmentStore(path) as store:
        for state in SMALL:
            store.write(NAMESPACE, state, payload_of(state))
        written: list[Segment] = []
        with pytest.raises(CacheStoreError, match=r"no space is left .*kvchat cache prune"):
            write_many(store, written)
        for state in (*SMALL, *written):
            assert store.read(state) == payload_of(state)
        assert len(store.segments()) == len(SMALL) + len(written)
        assert not list(path.rglob("*.new"))
        store.delete([state.key for state in written])
        store.write(NAMESPACE, SMALL[0], payload_of(SMALL[0]))
    with SegmentStore(path) as store:
        assert len(store.segments()) == len(SMALL)


def fill_limited(path: Path) -> None:
    """Fill a disk on which no file may be larger than 300,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    fill(path)


def brim(path: Path) -> None:
    """List the states of a disk without a free byte, and free space."""
    states = [state_of([n], nbytes=200_000) for n in range(3)]
    with SegmentStore(path) as store:
        for state in states:
            store.write(NAMESPACE, state, payload_of(state))
    filler = path / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    with SegmentStore(path) as store:
        assert len(store.segments()) == len(states)
        store.delete([states[0].key])
        store.prune(1, now=1.0)
        assert len(store.segments()) == 1
    filler.unlink()
    with SegmentStore(path) as store:
        assert len(store.segments()) == 1
        assert store.take_notes() == ()


def read_only(path: Path) -> None:
    """Read a folder that cannot be written, and check the advice about writing."""
    with SegmentStore(path) as store:
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
    with SegmentStore(path) as store:
        assert [store.read(state) for state in SMALL] == list(map(payload_of, SMALL))
        with pytest.raises(CacheStoreError, match="cannot be written: make its folder"):
            store.write(NAMESPACE, LARGE, payload_of(LARGE))


if __name__ == "__main__":
    {"full": fill, "brim": brim, "limited": fill_limited, "read-only": read_only}[sys.argv[1]](
        Path(sys.argv[2])
    )
