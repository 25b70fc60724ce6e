"""One folder of segments for all models and processes."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cache.segments import Segment, pack
from engine.cache.store import SegmentStore
from engine.errors import CacheStoreError, EngineError, StateError
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of

STATES = [state_of([n, n + 1, n + 2]) for n in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "states"


@pytest.fixture
def store(path: Path) -> Iterator[SegmentStore]:
    with SegmentStore(path) as store:
        yield store


def put(store: SegmentStore, *states: Segment) -> None:
    for state in states:
        store.write(NAMESPACE, state, payload_of(state))


def listed(store: SegmentStore) -> set[str]:
    return {state.key for state in store.segments(NAMESPACE.key)}


def keys(*states: Segment) -> set[str]:
    return {state.key for state in states}


def files(path: Path) -> set[str]:
    return {file.stem for file in path.glob("*.kv")}


def change_table(path: Path, statements: str) -> None:
    """Do as another program would, without the store."""
    with sqlite3.connect(path / "states.db") as connection:
        connection.executescript(statements)
    connection.close()


def test_a_written_state_is_read_bit_for_bit(store: SegmentStore) -> None:
    state = state_of([1, 2, -3, 2**31 - 1])
    store.write(NAMESPACE, state, memoryview(payload_of(state)))
    assert store.read(state) == payload_of(state)
    assert store.segments() == [state]
    assert store.nbytes == state.nbytes


def test_a_state_outlives_a_restart_with_its_use_and_pin(path: Path) -> None:
    state = state_of(range(40))
    used = replace(state, used_at=1_800_000_000.0, n_uses=7, owners=frozenset({"a", "b"}))
    with SegmentStore(path) as store:
        put(store, state)
        store.save_uses([used])
        store.pin(state.key, is_pinned=True)
    with SegmentStore(path) as store:
        assert store.segments(NAMESPACE.key) == [replace(used, is_pinned=True)]
        assert store.segments(NAMESPACE.key)[0].packed == pack(range(40))
        store.pin(state.key, is_pinned=False)
        assert not store.segments()[0].is_pinned


def test_states_are_listed_by_namespace_or_all(store: SegmentStore) -> None:
    other = state_of([1, 2, 3], namespace=OTHER)
    put(store, STATES[0])
    store.write(OTHER, other, payload_of(other))
    assert store.segments(OTHER.key) == [other]
    assert {state.key for state in store.segments()} == keys(STATES[0], other)
    assert store.namespaces() == [NAMESPACE, OTHER]


def test_all_files_are_readable_by_their_owner_only(store: SegmentStore, path: Path) -> None:
    put(store, *STATES)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_the_path_of_a_model_need_not_be_utf_8(store: SegmentStore) -> None:
    odd = replace(NAMESPACE, model=os.fsdecode(b"/models/na\xff.gguf"))
    store.add_namespace(odd)
    assert odd in store.namespaces()


def test_a_deleted_state_is_gone_and_deleting_it_again_is_no_error(store: SegmentStore) -> None:
    put(store, STATES[0])
    for _ in range(2):
        store.delete([STATES[0].key])
        assert store.segments() == []
    assert store.nbytes == 0
    with pytest.raises(StateError, match="is missing"):
        store.read(STATES[0])


def test_a_file_without_a_row_and_a_row_without_a_file_are_removed_at_the_next_start(
    path: Path,
) -> None:
    with SegmentStore(path) as store:
        put(store, *STATES)
    (path / f"{'0' * 16}.kv").write_bytes(b"left by a kill")
    (path / f"{STATES[0].key}.kv").unlink()
    with SegmentStore(path) as store:
        assert listed(store) == files(path) == keys(*STATES[1:])
        assert store.take_notes() == ()


def test_a_row_without_its_file_is_deleted_when_it_is_read(store: SegmentStore, path: Path) -> None:
    put(store, *STATES[:2])
    store.file_of(STATES[0].key).unlink()
    with pytest.raises(StateError, match="is missing"):
        store.read(STATES[0])
    assert listed(store) == keys(STATES[1])


@pytest.mark.parametrize("n_intact_bytes", [0, 10, 100, 4096, 17_000, 40_000])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_damaged_table_is_recreated_and_reported_once(
    path: Path, n_intact_bytes: int, *, is_cut: bool
) -> None:
    with SegmentStore(path) as store:
        put(store, *STATES)
    data = (path / "states.db").read_bytes()
    rest = b"" if is_cut else b"\xa5" * (len(data) - n_intact_bytes)
    (path / "states.db").write_bytes(data[:n_intact_bytes] + rest)
    with SegmentStore(path) as store:
        assert listed(store) <= keys(*STATES)
        put(store, state_of([9]))
        assert state_of([9]) in store.segments()
        notes = store.take_notes()
        assert len(notes) == (0 if not n_intact_bytes and is_cut else 1)
    with SegmentStore(path) as store:
        assert listed(store) == files(path)
        assert store.take_notes() == ()


def test_the_states_of_another_version_are_computed_again(path: Path) -> None:
    with SegmentStore(path) as store:
        put(store, *STATES)
    change_table(path, "PRAGMA user_version = 99")
    with SegmentStore(path) as store:
        assert listed(store) == files(path) == set()
        assert len(store.take_notes()) == 1


def test_a_table_that_is_damaged_while_in_use_is_recreated(store: SegmentStore, path: Path) -> None:
    put(store, *STATES)
    change_table(path, "DROP TABLE segments")
    assert listed(store) == files(path) == set()
    put(store, STATES[0])
    assert listed(store) == keys(STATES[0])
    with SegmentStore(path) as other:
        assert listed(other) == files(path) == keys(STATES[0])


@pytest.mark.parametrize(
    "change",
    [
        "key = '../../../../tmp/mine'",
        "namespace = 'another'",
        "parent = '0123456789abcdef'",
        "end = 4",
        "packed = x'010000000200000004000000'",
        "start = 'one'",
        "n_uses = -4",
        "packed = x'00'",
        "nbytes = -1",
        "recompute_s = 9e999",
        "used_at = -9e999",
    ],
)
def test_a_row_with_impossible_values_is_never_used(
    store: SegmentStore, path: Path, change: str
) -> None:
    put(store, STATES[0])
    change_table(path, f"UPDATE segments SET {change}")
    assert store.segments() == store.prune(1, now=1.0) == []
    assert store.take_notes()
    assert not files(path)


ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r)"


@pytest.mark.parametrize(
    "statements",
    [
        "ALTER TABLE segments RENAME TO hidden; CREATE VIEW segments AS "
        f"{ENDLESS} SELECT hidden.* FROM hidden, r",
        f"CREATE TRIGGER t AFTER INSERT ON segments BEGIN INSERT INTO namespaces {ENDLESS} "
        "SELECT n, n, n FROM r; END",
        "CREATE TRIGGER t BEFORE DELETE ON segments BEGIN SELECT RAISE(IGNORE); END",
        "ALTER TABLE segments ADD COLUMN more TEXT",
        "CREATE TABLE more (name TEXT)",
    ],
)
def test_a_table_with_an_unknown_schema_is_recreated(path: Path, statements: str) -> None:
    with SegmentStore(path) as store:
        put(store, *STATES)
    change_table(path, statements)
    with SegmentStore(path) as store:
        assert store.segments() == []
        put(store, STATES[0])
        assert listed(store) == files(path) == keys(STATES[0])


def test_the_path_of_the_folder_need_not_be_utf_8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xff?#%")) / "states"
    with SegmentStore(path) as store:
        put(store, *STATES)
    with SegmentStore(path) as store:
        assert listed(store) == files(path) == keys(*STATES)


def test_a_store_opened_after_the_folder_was_deleted_works(store: SegmentStore, path: Path) -> None:
    put(store, *STATES)
    shutil.rmtree(path)
    with pytest.raises(EngineError):
        store.read(STATES[0])
    with SegmentStore(path) as other:
        put(other, STATES[1])
        assert listed(other) == keys(STATES[1])


def test_a_file_under_another_name_is_not_read(store: SegmentStore) -> None:
    first, second = STATES[:2]
    put(store, first, second)
    store.file_of(first.key).replace(store.file_of(second.key))
    with pytest.raises(StateError, match="checksum"):
        store.read(second)
    assert not store.file_of(second.key).exists()


@pytest.mark.parametrize("how", ["cut", "grown", "flipped", "flipped digest", "empty", "a folder"])
def test_a_damaged_file_is_never_used_and_the_others_stay(store: SegmentStore, how: str) -> None:
    put(store, *STATES)
    file, data = store.file_of(STATES[0].key), payload_of(STATES[0])
    content = bytearray(file.read_bytes())
    assert bytes(content[32:]) == data
    content[3 if how == "flipped digest" else -1] ^= 1
    damaged = {"cut": data, "grown": bytes(content) + b"x", "empty": b""}.get(how, bytes(content))
    file.unlink()
    if how == "a folder":
        file.mkdir()
        with pytest.raises(CacheStoreError, match="Is a directory"):
            store.read(STATES[0])
        return
    file.write_bytes(damaged)
    with pytest.raises(StateError):
        store.read(STATES[0])
    assert not file.exists()
    assert listed(store) == keys(*STATES[1:])
    assert store.read(STATES[1]) == payload_of(STATES[1])


def test_a_pipe_in_place_of_a_file_does_not_block(store: SegmentStore) -> None:
    put(store, STATES[0])
    store.file_of(STATES[0].key).unlink()
    os.mkfifo(store.file_of(STATES[0].key))
    with pytest.raises(CacheStoreError, match="not a file"):
        store.read(STATES[0])


def test_unfinished_files_are_removed_when_their_process_has_ended(path: Path) -> None:
    ended = subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"])
    dead, living = int(ended), os.getpid()
    path.mkdir()
    for draft in (path / f"a.kv.abc.{dead}.new", path / f"a.kv.xyz.{living}.new"):
        draft.touch()
    with SegmentStore(path):
        assert [file.name for file in path.glob("*.new")] == [f"a.kv.xyz.{living}.new"]


def test_the_error_of_a_folder_that_cannot_be_created_advises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheStoreError, match=r'cold = "0"'):
        SegmentStore(tmp_path / "file" / "states")


def test_two_open_stores_see_each_others_states(path: Path) -> None:
    with SegmentStore(path) as first, SegmentStore(path) as second:
        put(first, STATES[0])
        put(second, STATES[1])
        assert listed(first) == listed(second) == keys(*STATES[:2])
        first.delete([STATES[1].key])
        with pytest.raises(StateError, match="is missing"):
            second.read(STATES[1])
        assert listed(second) == keys(STATES[0])


def test_forgetting_an_owner_deletes_what_only_that_owner_used(store: SegmentStore) -> None:
    shared = state_of((1, 2), owners=("chat:1", "chat:11"))
    own = state_of((1, 2, 3, 4), 2, owners=("chat:1",), is_pinned=True)
    theirs = state_of((1, 2, 5, 6), 2, owners=("chat:11",))
    nobody = state_of((9, 9), owners=())
    elsewhere = state_of((1, 2), namespace=OTHER, owners=("chat:1",))
    put(store, shared, own, theirs, nobody)
    store.write(OTHER, elsewhere, payload_of(elsewhere))
    assert {state.key for state in store.forget("chat:1")} == keys(own, elsewhere)
    assert {state.key: state.owners for state in store.segments()} == {
        shared.key: frozenset({"chat:11"}),
        theirs.key: frozenset({"chat:11"}),
        nobody.key: frozenset(),
    }
    assert store.forget("chat:1") == []


def test_threads_may_use_one_store(store: SegmentStore) -> None:
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for n in range(first, first + 20):
                state = state_of([n, n])
                put(store, state)
                store.save_uses([state])
                assert store.read(state) == payload_of(state)
                if n % 2:
                    store.delete([state.key])
        except BaseException as error:  # noqa: BLE001  shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(listed(store)) == 30
