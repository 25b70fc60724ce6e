"""One folder for every model and every kvchat that runs: files are the truth."""

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

from engine.cache import snapshot_folder as folders
from engine.cache.radix import StoredState
from engine.cache.snapshot_folder import ColdFolder
from engine.errors import CacheStoreError, StateError
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of

STATES = [state_of([n, n + 1, n + 2]) for n in range(5)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "states"


@pytest.fixture
def folder(path: Path) -> Iterator[ColdFolder]:
    with ColdFolder(path) as folder:
        yield folder


def put(folder: ColdFolder, *states: StoredState) -> None:
    for state in states:
        folder.write(NAMESPACE, state, payload_of(state))


def listed(folder: ColdFolder) -> set[str]:
    return {entry.state.key for entry in folder.entries(NAMESPACE.key)}


def keys(*states: StoredState) -> set[str]:
    return {state.key for state in states}


def test_everything_is_for_its_owner_only(folder: ColdFolder, path: Path) -> None:
    put(folder, *STATES)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()}
    assert modes == {0o600}
    assert {stat.S_IMODE(each.stat().st_mode) for each in (path, path / NAMESPACE.key)} == {0o700}


def test_a_model_whose_path_is_no_text_is_known_by_it(folder: ColdFolder) -> None:
    odd = replace(NAMESPACE, model=os.fsdecode(b"/models/na\xff.gguf"))
    folder.know(odd)
    assert odd in folder.namespaces()


def test_a_missing_index_is_made_of_the_files(path: Path) -> None:
    with ColdFolder(path) as folder:
        put(folder, *STATES)
        folder.pin(NAMESPACE.key, STATES[0].key, is_pinned=True)
        size = folder.nbytes
    for file in path.glob("index.*"):
        file.unlink()
    with ColdFolder(path) as folder:
        found = {entry.state.key: entry.state for entry in folder.entries(NAMESPACE.key)}
        assert found.keys() == keys(*STATES)
        assert [key for key, state in found.items() if state.is_pinned] == [STATES[0].key]
        assert folder.nbytes == size
        assert folder.namespaces() == (NAMESPACE,)
        assert folder.read(NAMESPACE.key, STATES[1]) == payload_of(STATES[1])


@pytest.mark.parametrize("n_kept_bytes", [0, 10, 100, 4096, 5000, 12_000])
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_damaged_index_is_made_of_the_files(
    path: Path, n_kept_bytes: int, *, is_cut: bool
) -> None:
    with ColdFolder(path) as folder:
        put(folder, *STATES)
    data = (path / "index.db").read_bytes()
    rest = b"" if is_cut else b"\xa5" * (len(data) - n_kept_bytes)
    (path / "index.db").write_bytes(data[:n_kept_bytes] + rest)
    with ColdFolder(path) as folder:
        assert folder.index_problem is None
        assert listed(folder) == keys(*STATES)
        put(folder, state_of([9]))
        assert listed(folder) == keys(*STATES, state_of([9]))


def test_an_index_of_another_shape_is_made_anew(path: Path) -> None:
    with ColdFolder(path) as folder:
        put(folder, *STATES)
    with sqlite3.connect(path / "index.db") as connection:
        connection.execute("DROP TABLE states")
        connection.execute("CREATE TABLE states (other TEXT)")
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with ColdFolder(path) as folder:
        assert listed(folder) == keys(*STATES)


def test_an_index_that_is_damaged_while_it_is_used_is_mended(
    folder: ColdFolder, path: Path
) -> None:
    put(folder, *STATES)
    with sqlite3.connect(path / "index.db") as connection:
        connection.execute("DROP TABLE states")
    connection.close()
    assert listed(folder) == keys(*STATES)
    put(folder, state_of([9]))
    assert listed(folder) == keys(*STATES, state_of([9]))


def test_a_folder_that_is_deleted_while_it_is_used_is_begun_again(
    folder: ColdFolder, path: Path
) -> None:
    put(folder, *STATES)
    shutil.rmtree(path)
    with pytest.raises(StateError, match="is gone"):
        folder.read(NAMESPACE.key, STATES[0])
    put(folder, STATES[1])
    assert listed(folder) == keys(STATES[1])
    with ColdFolder(path) as other:
        assert listed(other) == keys(STATES[1])


def test_a_file_that_appeared_is_taken_in_and_one_that_went_is_dropped(
    folder: ColdFolder, path: Path
) -> None:
    put(folder, *STATES)
    folder.file_of(NAMESPACE.key, STATES[0].key).unlink()
    elsewhere = path.parent / "kept.kv"
    folder.file_of(NAMESPACE.key, STATES[1].key).rename(elsewhere)
    assert listed(folder) == keys(*STATES[2:])
    elsewhere.rename(folder.file_of(NAMESPACE.key, STATES[1].key))
    assert listed(folder) == keys(*STATES[1:])


def test_a_renamed_file_is_not_read_as_another_state(folder: ColdFolder) -> None:
    first, second = STATES[:2]
    put(folder, first, second)
    folder.file_of(NAMESPACE.key, first.key).replace(folder.file_of(NAMESPACE.key, second.key))
    with pytest.raises(StateError, match=f"it is the state {first.key}"):
        folder.read(NAMESPACE.key, second)
    assert listed(folder) == set()


def test_a_file_of_another_namespace_is_not_read(folder: ColdFolder, path: Path) -> None:
    state, other = STATES[0], state_of([0, 1, 2], namespace=OTHER)
    put(folder, state)
    folder.write(OTHER, other, payload_of(other))
    shutil.copy(folder.file_of(OTHER.key, other.key), folder.file_of(NAMESPACE.key, state.key))
    with pytest.raises(StateError, match="other settings or another model"):
        folder.read(NAMESPACE.key, state)
    shutil.copytree(path / OTHER.key, path / NAMESPACE.key, dirs_exist_ok=True)
    assert listed(folder) == set()
    assert folder.read(OTHER.key, other) == payload_of(other)


def test_a_file_whose_tokens_are_not_those_of_its_name_is_not_read(folder: ColdFolder) -> None:
    false = replace(STATES[0], packed=STATES[1].packed)
    put(folder, false)
    with pytest.raises(StateError, match="not those of its name"):
        folder.read(NAMESPACE.key, false)


@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError])  # before and behind mkdir
def test_a_folder_that_another_removes_while_a_state_is_written_is_made_again(
    folder: ColdFolder, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    write, calls = folders.write_snapshot, []

    def hindered(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 1:
            raise error("the folder is gone")
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(folders, "write_snapshot", hindered)
    put(folder, STATES[0])
    assert folder.read(NAMESPACE.key, STATES[0]) == payload_of(STATES[0])


def test_a_damaged_file_is_deleted_with_a_note_and_the_rest_stays(folder: ColdFolder) -> None:
    put(folder, *STATES)
    file = folder.file_of(NAMESPACE.key, STATES[0].key)
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(StateError, match="checksum differs") as caught:
        folder.verify(NAMESPACE.key, STATES[0].key)
    assert not file.exists()
    assert folder.take_damaged() == (str(caught.value),)
    assert folder.take_damaged() == ()
    assert listed(folder) == keys(*STATES[1:])
    folder.verify(NAMESPACE.key, STATES[1].key)


def test_a_damaged_file_without_a_row_is_deleted_when_it_is_found(
    folder: ColdFolder, path: Path
) -> None:
    put(folder, STATES[0])
    (path / NAMESPACE.key / "00112233445566aa.kv").write_bytes(b"KVCHATST, or so it says")
    assert listed(folder) == keys(STATES[0])
    assert "00112233445566aa" in folder.take_damaged()[0]
    assert not (path / NAMESPACE.key / "00112233445566aa.kv").exists()


def test_drafts_of_dead_processes_are_removed_and_those_of_living_ones_stay(path: Path) -> None:
    ended = subprocess.check_output([sys.executable, "-c", "import os; print(os.getpid())"])
    dead, living = int(ended), os.getpid()
    inner = path / NAMESPACE.key
    inner.mkdir(parents=True)
    reused = inner / f"old.kv.abc.{living}.new"
    for draft in (inner / f"a.kv.abc.{dead}.new", inner / f"a.kv.xyz.{living}.new", reused):
        draft.touch()
    os.utime(reused, (1.0, 1.0))  # before this process began, so its number was another's
    with ColdFolder(path):
        assert [file.name for file in inner.iterdir()] == [f"a.kv.xyz.{living}.new"]


def test_a_pin_stays_when_the_state_is_written_again(folder: ColdFolder) -> None:
    pinned = state_of([1, 2], is_pinned=True)
    put(folder, pinned)
    put(folder, pinned)
    (entry,) = folder.entries(NAMESPACE.key)
    assert entry.state.is_pinned
    folder.pin(NAMESPACE.key, pinned.key, is_pinned=False)
    (entry,) = folder.entries(NAMESPACE.key)
    assert not entry.state.is_pinned


def test_pinning_what_is_not_there_says_so(folder: ColdFolder) -> None:
    with pytest.raises(CacheStoreError, match="No such file"):
        folder.pin(NAMESPACE.key, STATES[0].key, is_pinned=True)


def test_a_folder_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CacheStoreError, match=r'or set cold = "0"'):
        ColdFolder(tmp_path / "file" / "states")


def test_two_open_folders_see_each_others_states(path: Path) -> None:
    with ColdFolder(path) as first, ColdFolder(path) as second:
        put(first, STATES[0])
        put(second, STATES[1])
        assert listed(first) == listed(second) == keys(*STATES[:2])
        first.delete(NAMESPACE.key, STATES[1].key)
        with pytest.raises(StateError, match="is gone"):
            second.read(NAMESPACE.key, STATES[1])
        assert listed(second) == keys(STATES[0])


def test_a_damaged_index_that_others_use_is_replaced_in_memory_only(path: Path) -> None:
    with ColdFolder(path) as folder:
        put(folder, *STATES)
    with ColdFolder(path):
        data = (path / "index.db").read_bytes()
        (path / "index.db").write_bytes(b"\xa5" * len(data))
        with ColdFolder(path) as second:
            assert listed(second) == keys(*STATES)
            put(second, state_of([9]))
            second.pin(NAMESPACE.key, STATES[0].key, is_pinned=True)
            assert "forgotten at the end" in str(second.index_problem)
    with ColdFolder(path) as folder:
        states = [entry.state for entry in folder.entries(NAMESPACE.key)]
        assert {state.key for state in states} == keys(*STATES, state_of([9]))
        assert [state.key for state in states if state.is_pinned] == [STATES[0].key]


def test_threads_may_use_one_folder(folder: ColdFolder) -> None:
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for n in range(first, first + 20):
                state = state_of([n, n])
                put(folder, state)
                folder.note_use(NAMESPACE.key, state.key, used_at=1.0, n_uses=1, owners=frozenset())
                assert folder.read(NAMESPACE.key, state) == payload_of(state)
                if n % 2:
                    folder.delete(NAMESPACE.key, state.key)
        except BaseException as error:  # noqa: BLE001  shown by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(listed(folder)) == 30
