"""`kvchat cache`, run as a user runs it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run
from app.store.chats import ChatStore
from engine.cache.namespace import Namespace
from engine.cache.segments import Segment
from engine.cache.store import SegmentStore
from engine.memory.units import MIB
from tests.app.cli.conftest import kvchat
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of
from tests.support.chats import add_chat

NOW = time.time()
HEAD = state_of(range(300), owners=("chat:1", "chat:2"), used_at=NOW, nbytes=50_000)
TAIL = state_of(range(500), 300, owners=("chat:1",), used_at=NOW - 60, nbytes=40_000)
OLD = state_of([7], owners=(), used_at=NOW - 40 * 86_400, recompute_s=0.001)
GONE = state_of([8], namespace=OTHER, used_at=NOW - 99)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[SegmentStore]:
    """Three states of a model that is there, and one of a model that is gone."""
    model = tmp_path / "smol.gguf"
    model.touch()
    here = Namespace(NAMESPACE.key, str(model), (("model hash", "00ff"), ("K type", "f16")))
    with SegmentStore(paths.snapshots_dir()) as folder:
        put(folder, here, HEAD, TAIL, OLD)
        put(folder, OTHER, GONE)
        yield folder


def put(folder: SegmentStore, namespace: Namespace, *states: Segment) -> None:
    for state in states:
        folder.write(namespace, state, payload_of(state))


def saved(folder: SegmentStore) -> set[str]:
    return {state.key for state in folder.segments()}


def keys(*states: Segment) -> set[str]:
    return {state.key for state in states}


def damage(folder: SegmentStore, state: Segment, at: int = -1) -> None:
    path = folder.file_of(state.key)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.usefixtures("folder")
def test_the_list_names_models_settings_states_and_chats() -> None:
    with ChatStore(paths.database_path()) as store:
        add_chat(store, "Of caches")
    lines = kvchat("cache").stdout.splitlines()
    assert lines[0].split()[0] == "smol"
    assert lines[1] == "K type f16"
    assert lines[3].split()[:2] == [HEAD.key, "300"]
    assert lines[3].rstrip().endswith("Of caches, chat 2")
    assert lines[4].split()[:4] == [TAIL.key, "300", "to", "500"]
    assert lines[5].split()[-1] == "-"
    assert "two" in lines[7]
    assert "no longer exists" in lines[7]
    assert lines[-1].startswith("4 states, ")
    assert lines[-1].endswith(" of 8 GiB")


@pytest.mark.usefixtures("folder")
def test_the_list_as_json_reports_everything() -> None:
    with ChatStore(paths.database_path()) as store:
        add_chat(store, "Of caches")
    listed = json.loads(kvchat("cache", "list", "--json").stdout)
    first, second = listed["models"]
    assert listed["budget_bytes"] == 8192 * MIB
    assert listed["bytes"] == first["bytes"] + second["bytes"]
    assert (first["is_gone"], second["is_gone"]) == (False, True)
    assert first["fields"] == {"model hash": "00ff", "K type": "f16"}
    state = first["states"][0]
    assert (state["key"], state["start"], state["n_tokens"]) == (HEAD.key, 0, 300)
    assert state["chats"] == [{"id": 1, "title": "Of caches"}, {"id": 2, "title": None}]


def test_an_empty_cache_reports_it() -> None:
    done = kvchat("cache")
    assert (done.returncode, done.stdout) == (0, "")
    assert "No saved states" in done.stderr
    assert json.loads(kvchat("cache", "list", "--json").stdout)["models"] == []
    checked = kvchat("cache", "verify")
    assert (checked.returncode, checked.stdout) == (0, ""), "of no states none is whole"
    assert "No saved states" in checked.stderr
    assert "No saved states" in kvchat("cache", "clear").stderr


def test_a_check_of_whole_states_ends_well(folder: SegmentStore) -> None:
    done = kvchat("cache", "verify")
    assert (done.returncode, done.stdout) == (0, "4 states checked, none damaged\n")
    assert kvchat("cache", "verify", HEAD.key[:6]).stdout == "1 state checked, none damaged\n"


def test_a_check_names_damaged_states_removes_them_and_fails(folder: SegmentStore) -> None:
    damage(folder, HEAD)
    done = kvchat("cache", "verify")
    assert done.returncode == 1
    assert HEAD.key in done.stdout.splitlines()[0]
    assert done.stdout.endswith("4 states checked, 1 damaged\n")
    assert HEAD.key not in saved(folder)
    assert kvchat("cache", "verify").returncode == 0


def test_a_check_as_json_names_what_was_damaged(folder: SegmentStore) -> None:
    damage(folder, HEAD, at=7)
    damage(folder, TAIL)
    done = kvchat("cache", "verify", "--json")
    assert done.returncode == 1
    damaged = json.loads(done.stdout)["damaged"]
    assert {each["key"] for each in damaged} == keys(HEAD, TAIL)


def test_a_damaged_table_is_reported_by_the_list_and_by_a_check(folder: SegmentStore) -> None:
    folder.close()
    (paths.snapshots_dir() / "states.db").write_bytes(b"noise" * 9000)
    done = kvchat("cache", "list")
    assert "was damaged" in done.stderr
    assert "No saved states" in done.stderr
    (paths.snapshots_dir() / "states.db").write_bytes(b"noise" * 9000)
    checked = kvchat("cache", "verify", "--json")
    assert checked.returncode == 1
    assert [each["key"] for each in json.loads(checked.stdout)["damaged"]] == [None]


def test_pruning_by_age_removes_what_was_not_used(folder: SegmentStore) -> None:
    done = kvchat("cache", "prune", "--older", "30d")
    assert "Deleted 1 state" in done.stderr
    assert saved(folder) == keys(HEAD, TAIL, GONE)


def test_pruning_to_a_size_begins_with_models_that_are_gone(folder: SegmentStore) -> None:
    assert kvchat("cache", "prune", "--to", f"{folder.nbytes - 1}B").returncode == 0
    assert saved(folder) == keys(HEAD, TAIL, OLD)
    kvchat("cache", "prune", "--to", "60KiB")
    assert saved(folder) == keys(HEAD)


def test_pruning_without_a_word_obeys_the_budget(folder: SegmentStore) -> None:
    assert "Nothing to delete" in kvchat("cache", "prune").stderr
    kvchat("settings", "cache.cold", "60KiB")
    kvchat("cache", "prune")
    assert saved(folder) == keys(HEAD)


def test_pinned_states_outlive_pruning_with_their_start(folder: SegmentStore) -> None:
    assert kvchat("cache", "pin", TAIL.key[:8]).returncode == 0
    done = kvchat("cache", "prune", "--to", "0")
    assert "are pinned" in done.stderr
    assert saved(folder) == keys(HEAD, TAIL)
    kvchat("cache", "unpin", TAIL.key)
    kvchat("cache", "prune", "--to", "0")
    assert saved(folder) == set()


def test_dropping_a_state_drops_what_continues_it(folder: SegmentStore) -> None:
    done = kvchat("cache", "drop", HEAD.key)
    assert "Deleted 2 states" in done.stderr
    assert saved(folder) == keys(OLD, GONE)


def test_an_unknown_key_is_refused(folder: SegmentStore) -> None:
    assert "`kvchat cache list`" in kvchat("cache", "pin", "zz").stderr
    assert kvchat("cache", "pin", "").returncode == 1
    assert len(saved(folder)) == 4


def test_a_beginning_that_two_keys_share_is_refused(folder: SegmentStore) -> None:
    first = next(
        (a, b)
        for a in (state_of([n]) for n in range(10, 60))
        for b in (state_of([n]) for n in range(60, 99))
        if a.key[:2] == b.key[:2]
    )
    put(folder, NAMESPACE, *first)
    done = kvchat("cache", "drop", first[0].key[:2])
    assert done.returncode == 1
    assert first[1].key in done.stderr


def test_clearing_asks_first(folder: SegmentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    done = kvchat("cache", "clear")
    assert (done.returncode, len(saved(folder))) == (2, 4)
    assert "--yes" in done.stderr
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert run(["cache", "clear"]) == 1
    assert len(saved(folder)) == 4
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    assert run(["cache", "clear"]) == 0
    assert saved(folder) == set()


def test_clearing_leaves_no_tokens_on_disk(folder: SegmentStore) -> None:
    folder.close()
    assert kvchat("cache", "clear", "--yes").returncode == 0
    left = [path for path in paths.snapshots_dir().rglob("*") if path.is_file()]
    assert left
    assert not [path for path in left if HEAD.packed[:40] in path.read_bytes()]
