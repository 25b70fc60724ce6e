"""Two processes on one database, and one that is killed."""

import fcntl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.errors import ChatInUseError, StoreError
from tests.app.store.conftest import ask, new_chat, reply
from tests.support.waiting import PATIENCE_S, wait_until


def python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


WRITER = """
import sys
from pathlib import Path
from app.store.chats import ChatStore
from tests.support.chats import add_message
with ChatStore(Path(sys.argv[1])) as store:
    for n in range(100):
        add_message(store, int(sys.argv[2]), None, "user", f"theirs {n}")
"""


def test_two_processes_write_one_database_and_lose_nothing(store: ChatStore, path: Path) -> None:
    chat = new_chat(store)
    other = python(WRITER, path, chat.id)
    for n in range(100):
        ask(store, chat, None, f"ours {n}")
    assert other.wait(timeout=PATIENCE_S) == 0
    other.communicate()
    contents = [message.content for message in store.tree(chat.id).messages]
    assert sorted(contents) == sorted(
        [f"ours {n}" for n in range(100)] + [f"theirs {n}" for n in range(100)]
    )


def test_all_that_begin_a_database_at_once_can_use_it(tmp_path: Path) -> None:
    # SQLite refuses without waiting where two switch a new file to a write-ahead log.
    def notices(path: Path, begin: threading.Barrier) -> tuple[str, ...]:
        begin.wait()
        with ChatStore(path) as store:
            return store.notices

    with ThreadPoolExecutor(4) as pool:
        for n in range(40):
            begun = pool.map(notices, [tmp_path / f"{n}.db"] * 4, [threading.Barrier(4)] * 4)
            assert list(begun) == [()] * 4


LOCKER = """
import sys, time
from pathlib import Path
from app.store.chats import ChatStore
with ChatStore(Path(sys.argv[1])) as store:
    lock = store.lock_chat(int(sys.argv[2]))
    print("locked" if lock else "refused", flush=True)
    time.sleep(60)
"""


def test_a_chat_that_another_process_writes_is_locked_until_that_one_dies(
    store: ChatStore, path: Path
) -> None:
    chat, free = new_chat(store), new_chat(store)
    other = python(LOCKER, path, chat.id)
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    assert store.lock_chat(chat.id) is None
    elsewhere = store.lock_chat(free.id)
    assert elsewhere is not None
    elsewhere.close()
    other.kill()
    other.communicate()
    mine = store.lock_chat(chat.id)
    assert mine is not None
    mine.close()


def test_a_lock_is_held_once_and_leaves_no_file(store: ChatStore, path: Path) -> None:
    chat = new_chat(store)
    lock = store.lock_chat(chat.id)
    assert lock is not None
    assert store.lock_chat(chat.id) is None
    lock.close()
    lock.close()
    # The lock of the backup, which a thread of the store makes meanwhile, is none of ours.
    left = {each.name for each in path.with_name("chats.db.locks").iterdir()}
    assert left <= {"backup"}
    again = store.lock_chat(chat.id)
    assert again is not None
    again.close()


def test_a_lock_file_that_vanishes_while_it_is_taken_is_made_again(
    store: ChatStore, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = new_chat(store)
    real, n_taken = fcntl.flock, 0

    def flock(descriptor: int, operation: int) -> None:
        nonlocal n_taken
        real(descriptor, operation)
        if threading.current_thread() is not threading.main_thread():
            return  # the thread of the backup has a lock too
        n_taken += 1
        if n_taken == 1:  # as if the one who held it before had just let it go
            (path.with_name("chats.db.locks") / f"chat-{chat.id}").unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = store.lock_chat(chat.id)
    assert lock is not None
    assert n_taken == 2
    assert store.lock_chat(chat.id) is None
    lock.close()


STREAMER = """
import itertools, sys, time
from pathlib import Path
from app.store.chats import ChatStore
store = ChatStore(Path(sys.argv[1]))
for n in itertools.count(1):
    store.write_partial(int(sys.argv[2]), "x" * n, range(n))
    time.sleep(0.01)
"""


def test_a_killed_process_loses_nothing_of_a_reply_that_another_one_has_seen(
    store: ChatStore, path: Path
) -> None:
    chat = new_chat(store)
    question = ask(store, chat, None, "committed before")
    answer = reply(store, chat, question)
    streamer = python(STREAMER, path, answer.id)

    def n_saved() -> int:
        return len(store.message(answer.id).content)

    wait_until(n_saved)
    first = n_saved()
    wait_until(lambda: n_saved() > first)
    seen = n_saved()
    streamer.kill()
    streamer.communicate()
    with ChatStore(path) as after:
        assert len(after.message(answer.id).content) >= seen
        assert [m.content for m in after.path_to(question.id)] == ["committed before"]


IMPORTER = """
import sys, time
from pathlib import Path
from app.store import sql
from app.store.chats import ChatStore
real, n_inserted = sql._insert, 0
def insert(*arguments):
    global n_inserted
    n_inserted += 1
    if n_inserted == 7:
        print("in the middle", flush=True)
        time.sleep(60)
    return real(*arguments)
sql._insert = insert
with ChatStore(Path(sys.argv[1])) as store:
    tree = store.tree(int(sys.argv[2]))
    store.add_trees([tree, tree])
"""


def test_an_import_that_is_killed_in_the_middle_leaves_nothing(
    store: ChatStore, path: Path
) -> None:
    chat = new_chat(store)
    question = ask(store, chat, None, "the only cache")
    for _ in range(3):
        reply(store, chat, question, "the only answer")
    importer = python(IMPORTER, path, chat.id)
    assert importer.stdout is not None
    assert importer.stdout.readline() == "in the middle\n"
    importer.kill()
    importer.communicate()
    assert [each.id for each in store.list_chats()] == [chat.id]
    assert len(store.search("only")) == 4
    assert ask(store, chat, question, "it goes on").parent_id == question.id


def test_a_chat_is_never_deleted_from_under_another_process(store: ChatStore, path: Path) -> None:
    chat = new_chat(store)
    with ChatStore(path) as other:
        lock = other.lock_chat(chat.id)
        assert lock is not None
        with pytest.raises(ChatInUseError, match="another kvchat process"):
            store.delete_chat(chat.id)
        lock.close()
        store.delete_chat(chat.id)
        assert other.list_chats() == []
        assert other.lock_chat(chat.id) is not None


def test_a_store_closed_while_threads_begin_to_read_leaves_no_file_open(path: Path) -> None:
    def read(store: ChatStore) -> None:
        with suppress(StoreError):
            store.list_chats()

    for _ in range(30):
        store = ChatStore(path)
        threads = [threading.Thread(target=read, args=(store,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        store.close()
        for thread in threads:
            thread.join()
        open_files = {
            file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()
        }
        assert not [file for file in open_files if file.name.startswith(path.name)]
