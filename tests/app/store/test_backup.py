"""A database that a disk has damaged is preserved, and the daily backup takes its place."""

import os
import random
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.database import backup_of
from app.store.errors import StoreError
from tests.app.store.conftest import ask, finish, new_chat, reply
from tests.support.waiting import wait_until

PAGE = 4096
DAY_S = 24 * 3600


def fill(path: Path, n_chats: int = 6, n_turns: int = 6) -> None:
    with ChatStore(path) as store:
        for n in range(n_chats):
            chat, message = new_chat(store, f"chat {n}"), None
            for turn in range(n_turns):
                question = ask(store, chat, message, f"question {turn} " * 30)
                message = finish(store, reply(store, chat, question), f"answer {turn} " * 30)


def back_up(path: Path) -> None:
    """Open a store, a day later, until its backup is made."""
    if backup_of(path).exists():
        grow_old(path)
    before = changed(path)
    with ChatStore(path):
        wait_until(lambda: changed(path) != before)


def changed(path: Path) -> int:
    backup = backup_of(path)
    return backup.stat().st_mtime_ns if backup.exists() else 0


def grow_old(path: Path) -> None:
    when = backup_of(path).stat().st_mtime - DAY_S - 1
    os.utime(backup_of(path), (when, when))


def read_everything(store: ChatStore) -> dict[str, int]:
    """Read all that the store holds, and give how many messages each chat shows."""
    shown = {}
    for chat in store.list_chats(archived=None):
        tree = store.tree(chat.id)
        path = [] if chat.head_id is None else store.path_to(chat.head_id)
        assert {message.id for message in path} <= {message.id for message in tree.messages}
        shown[chat.title] = len(path)
    return shown


def test_a_day_after_the_last_backup_another_is_made_for_its_owner_only(path: Path) -> None:
    fill(path)
    back_up(path)
    assert stat.S_IMODE(backup_of(path).stat().st_mode) == 0o600
    first = backup_of(path).read_bytes()
    with ChatStore(path) as store:
        ask(store, new_chat(store, "later"), None, "q")
    assert backup_of(path).read_bytes() == first
    back_up(path)
    assert b"later" in backup_of(path).read_bytes()
    assert [each.name for each in path.parent.glob("*.new")] == []


def test_an_emptied_list_does_not_replace_the_backup(path: Path) -> None:
    fill(path)
    back_up(path)
    path.unlink()
    grow_old(path)
    before = backup_of(path).read_bytes()
    ChatStore(path).close()
    assert backup_of(path).read_bytes() == before


def test_a_deleted_chat_leaves_the_backup_at_the_next_start(path: Path) -> None:
    fill(path, n_chats=2)
    back_up(path)
    with ChatStore(path) as store:
        [gone] = [chat.id for chat in store.list_chats() if chat.title == "chat 1"]
        store.delete_chat(gone)
    assert b"chat 1" in backup_of(path).read_bytes()
    with ChatStore(path):
        wait_until(lambda: b"chat 1" not in backup_of(path).read_bytes())
    assert b"chat 1" not in backup_of(path).read_bytes()


def test_damage_brings_the_chats_of_the_backup_back(path: Path) -> None:
    fill(path)
    back_up(path)
    path.write_bytes(b"this is no database" * 1000)
    with ChatStore(path) as store:
        [notice] = store.notices
        assert "chats.db.broken" in notice
        assert "6 chats" in notice
        assert read_everything(store) == {f"chat {n}": 12 for n in range(6)}
        ask(store, store.list_chats()[0], None, "more")
    with ChatStore(path) as store:
        assert store.notices == ()


@pytest.mark.parametrize("backup", [b"", b"no database" * 1000, None])
def test_a_damaged_backup_is_not_used(path: Path, backup: bytes | None) -> None:
    fill(path)
    back_up(path)
    data = backup_of(path).read_bytes()
    backup_of(path).write_bytes(data[: len(data) // 2] if backup is None else backup)
    path.write_bytes(b"this is no database" * 1000)
    with ChatStore(path) as store:
        assert "new database" in store.notices[0]
        assert store.list_chats() == []
        ask(store, new_chat(store), None, "q")


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_damaged_what_opens_can_be_read(path: Path, seed: int) -> None:
    fill(path)
    back_up(path)
    source = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(source.choice((1, 3, 30))):
        start = source.randrange(100, len(data))
        length = source.choice((1, 16, PAGE))
        data[start : start + length] = source.randbytes(len(data[start : start + length]))
    path.write_bytes(data)
    with ChatStore(path) as store:
        shown = read_everything(store)
        store.search("answer")
        ask(store, new_chat(store, "goes on"), None, "a question")
    assert len(shown) == 6


def test_a_field_that_a_disk_has_damaged_hides_no_message(path: Path) -> None:
    fill(path, n_chats=1, n_turns=1)
    database = sqlite3.connect(path)
    database.execute("UPDATE chats SET sampling = '{\"temp', title = CAST(x'41ff42' AS TEXT)")
    database.execute("UPDATE messages SET stats = '{\"n_em', content = CAST(x'61ff62' AS TEXT)")
    database.commit()
    database.close()
    with ChatStore(path) as store:
        (chat,) = store.list_chats()
        assert chat.title == "A\ufffdB"
        assert [(m.content, m.stats) for m in store.tree(chat.id).messages] == [
            ("a\ufffdb", None)
        ] * 2


HOLDER = """
import sys
from pathlib import Path
from app.store.chats import ChatStore
with ChatStore(Path(sys.argv[1])):
    print("open", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("n_others", [1, 2, 3])
def test_a_damaged_database_stays_while_any_other_kvchat_has_it_open(
    path: Path, n_others: int
) -> None:
    fill(path, n_chats=1, n_turns=1)
    back_up(path)  # else the others would still be copying a file that is being overwritten
    others = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(n_others)
    ]
    for each in others:
        assert each.stdout is not None
        assert each.stdout.readline() == b"open\n"
    path.write_bytes(b"this is no database" * 300)
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    for each in others:  # the first to open ends first
        with pytest.raises(StoreError, match="in another kvchat process"):
            ChatStore(path)
        each.communicate()
    with ChatStore(path) as store:
        assert store.notices != ()
