"""Faults of files and disks, and their messages."""

import errno
import os
import queue
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from app.format import NO_VALUE, local_time
from app.render.chat_list import when_text
from app.store import writer
from app.store.chats import ChatStore
from app.store.errors import StoreError, is_busy, is_damage, store_error
from app.store.records import UnsentText
from app.store.writer import BUSY_S
from tests.app.store.conftest import ask, finish, new_chat, reply


def fill_disk(store: ChatStore) -> None:
    """Let the database not grow any more, as a full disk does."""
    pages = store.writer.run(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    store.writer.run(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone())


def free_disk(store: ChatStore) -> None:
    store.writer.run(lambda db: db.execute("PRAGMA max_page_count = 1000000").fetchone())


def test_files_are_for_their_owner_only(store: ChatStore, path: Path) -> None:
    new_chat(store)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in path.parent.iterdir()}
    assert {"chats.db", "chats.db-wal"} <= set(modes)
    assert modes.pop("chats.db.locks", 0o700) == 0o700
    assert set(modes.values()) == {0o600}


def test_a_full_disk_is_named_and_nothing_is_lost(store: ChatStore) -> None:
    chat = new_chat(store)
    question = ask(store, chat, None, "saved")
    fill_disk(store)
    with pytest.raises(StoreError, match="no space is left"):
        ask(store, chat, question, "x" * 100_000)
    assert store.chat(chat.id).head_id == question.id
    free_disk(store)
    assert ask(store, chat, question, "x" * 100_000).parent_id == question.id


@pytest.fixture
def busy(path: Path) -> Iterator[tuple[ChatStore, sqlite3.Connection]]:
    """An impatient store with an open reply, and who writes the same database just now."""
    with ChatStore(path) as store:
        chat = new_chat(store)
        reply(store, chat, ask(store, chat, None, "q"), "half")
        store.writer.patience_s = 0.01
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        yield store, other
        other.close()


def test_a_busy_database_keeps_its_caller_no_longer_than_the_callers_patience(
    busy: tuple[ChatStore, sqlite3.Connection],
) -> None:
    store, other = busy
    [chat] = store.list_chats()
    with pytest.raises(StoreError, match="another program is writing to it, or the disk"):
        store.update_chat(chat.id, title="never")
    other.execute("ROLLBACK")
    store.writer.patience_s = BUSY_S
    store.update_chat(chat.id, system_prompt="later")
    assert store.chat(chat.id).title == "a chat", "what was given up is not done later"


def test_the_end_of_a_reply_is_written_when_a_busy_database_is_free(
    busy: tuple[ChatStore, sqlite3.Connection],
) -> None:
    store, other = busy
    [chat] = store.list_chats()
    assert chat.head_id is not None
    assert finish(store, store.message(chat.head_id), "whole") is None
    assert store.message(chat.head_id).content == "half"
    other.execute("ROLLBACK")
    store.close()
    with ChatStore(store.path) as again:
        ended = again.message(chat.head_id)
    assert (ended.content, ended.finish_reason) == ("whole", "end")


def test_a_reply_that_waits_long_to_be_written_is_reported_and_still_written(
    busy: tuple[ChatStore, sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "BUSY_S", 0.0)
    store, other = busy
    reported: queue.SimpleQueue[StoreError] = queue.SimpleQueue()
    store.writer.on_error = reported.put
    [chat] = store.list_chats()
    assert chat.head_id is not None
    finish(store, store.message(chat.head_id), "whole")
    assert "is busy" in str(reported.get(timeout=10))
    other.execute("ROLLBACK")
    store.writer.patience_s = 10.0
    store.update_chat(chat.id, title="after it")
    assert store.message(chat.head_id).content == "whole"
    assert reported.empty(), "once is enough"


def test_a_partial_that_cannot_be_written_is_reported_once_until_it_can_again(
    store: ChatStore,
) -> None:
    reported: list[StoreError] = []
    store.writer.on_error = reported.append
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"))
    fill_disk(store)
    for size in (100_000, 200_000):
        store.write_partial(answer.id, "x" * size, ())
        store.flush()
    assert [str(error) for error in reported] == [str(reported[0])]
    assert "no space is left" in str(reported[0])
    free_disk(store)
    store.write_partial(answer.id, "y", ())
    store.flush()
    assert store.message(answer.id).content == "y"
    fill_disk(store)
    store.write_partial(answer.id, "x" * 300_000, ())
    store.flush()
    assert [str(error) for error in reported] == [str(reported[0])] * 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"this is no database" * 300),
        lambda path: path.write_bytes(path.read_bytes()[:5000]),
        lambda path: path.write_bytes(
            path.read_bytes()[:8192] + b"\xff" * 8192 + path.read_bytes()[16384:]
        ),
    ],
    ids=["text", "truncated", "overwritten"],
)
def test_a_damaged_database_is_moved_aside_and_never_deleted(path: Path, damage) -> None:
    with ChatStore(path) as store:
        new_chat(store)
    damage(path)
    damaged = path.read_bytes()
    with ChatStore(path) as store:
        n_saved = len(store.list_chats())
        assert "chats.db.broken" in store.notices[0]
        new_chat(store)
    assert path.with_name("chats.db.broken").read_bytes() == damaged
    with ChatStore(path) as store:
        assert len(store.list_chats()) == n_saved + 1
        assert store.notices == ()


def test_a_store_whose_file_was_taken_away_closes_all_the_same(path: Path) -> None:
    with ChatStore(path) as store:
        new_chat(store)
        path.unlink()
    with ChatStore(path) as again:
        assert again.list_chats() == []


def test_a_second_damaged_database_leaves_the_first_one(path: Path) -> None:
    path.parent.mkdir()
    for text in (b"first" * 1000, b"second" * 1000):
        path.write_bytes(text)
        ChatStore(path).close()
    assert path.with_name("chats.db.broken").read_bytes() == b"first" * 1000
    assert path.with_name("chats.db.broken-2").read_bytes() == b"second" * 1000


READ_ONLY = """
import os, sys
from pathlib import Path
from app.store.chats import ChatStore
from app.store.errors import StoreError
from tests.support.chats import add_chat
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
try:
    with ChatStore(Path(sys.argv[1])) as store:
        add_chat(store, "t")
except StoreError as error:
    sys.exit(f"StoreError: {error}")
"""


def write_without_rights(path: Path) -> str:
    """Write a store where root's right to write anything does not count."""
    command = [sys.executable, "-c", READ_ONLY, str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr.strip()


def test_a_folder_that_cannot_be_written_is_named(shared_path: Path) -> None:
    shared_path.parent.chmod(0o555)
    answer = write_without_rights(shared_path)
    assert answer.startswith("StoreError:")
    assert f"{shared_path.parent} cannot be written" in answer


def test_a_database_that_cannot_be_written_is_named(shared_path: Path) -> None:
    with ChatStore(shared_path) as store:
        new_chat(store)
    shared_path.parent.chmod(0o777)
    shared_path.with_name("chats.db.lock").chmod(0o666)
    shared_path.chmod(0o444)
    answer = write_without_rights(shared_path)
    assert answer.startswith("StoreError:")
    assert f"{shared_path} cannot be written" in answer


@pytest.fixture
def shared_path() -> Iterator[Path]:
    """Give a path that another user can reach; pytest's own folders are for their owner only."""
    with tempfile.TemporaryDirectory(prefix="kvchat-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "data").mkdir()
        yield folder / "data" / "chats.db"
        (folder / "data").chmod(0o700)


@pytest.mark.parametrize("when", [1.79e12, 1e18, 1e308, -1e12, float("inf")])
def test_a_chat_with_a_time_that_no_calendar_has_is_listed(store: ChatStore, when: float) -> None:
    chat = new_chat(store)
    store.writer.run(lambda db: db.execute("UPDATE chats SET updated_at = ?", (when,)))
    [shown] = store.list_chats()
    seconds = shown.updated_at
    assert when_text(seconds, datetime.now()) == local_time(seconds) == NO_VALUE
    assert store.chat(chat.id).title == chat.title


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_matter_of_space_and_not_of_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(path: object, *_: object) -> int:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StoreError, match="no space") as caught:
            ChatStore(tmp_path / "chats.db")
    assert "right" not in str(caught.value)


def test_a_job_that_raises_whatever_it_likes_leaves_the_writer_alive(store: ChatStore) -> None:
    reported: list[StoreError] = []
    store.writer.on_error = reported.append
    chat = new_chat(store)
    answer = reply(store, chat, ask(store, chat, None, "q"), "half")
    store.save_unsent({chat.id: UnsentText("na\udcff.txt")})
    store.writer.later(lambda _: 1 / 0)  # type: ignore[arg-type, return-value]  # as a bug would
    with pytest.raises(StoreError, match="U\\+D800"):
        ask(store, chat, answer, "half \ud800")
    store.write_partial(answer.id, "half \udcff", [])
    store.flush()
    assert ask(store, chat, answer, "goes on").content == "goes on"
    assert any("U+DCFF" in str(error) for error in reported)
    assert any("ZeroDivisionError" in str(error) for error in reported)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (sqlite3.SQLITE_FULL, "no space is left"),
        (sqlite3.SQLITE_READONLY, "make the file writable"),
        (sqlite3.SQLITE_PERM, "make the file writable"),
        (sqlite3.SQLITE_CANTOPEN, "create its folder"),
        (sqlite3.SQLITE_BUSY, "try again later"),
        (sqlite3.SQLITE_LOCKED, "try again later"),
        (sqlite3.SQLITE_CORRUPT, "restart kvchat to move the file aside"),
        (sqlite3.SQLITE_NOTADB, "restart kvchat to move the file aside"),
        (sqlite3.SQLITE_IOERR | 3 << 8, "check the disk"),  # an extended code
        (sqlite3.SQLITE_TOOBIG, "chats.db: too odd"),
        (None, "chats.db: too odd"),
    ],
)
def test_each_fault_of_sqlite_names_the_file_and_what_to_do(code: int | None, words: str) -> None:
    fault = sqlite3.OperationalError("too odd")
    if code is not None:
        fault.sqlite_errorcode = code
    shown = str(store_error(fault, Path("/d/chats.db")))
    assert shown.removeprefix("no space is left for ").startswith("/d/chats.db")
    assert words in shown
    assert is_busy(fault) == ("try again" in words)
    assert is_damage(fault) == ("restart" in words)
