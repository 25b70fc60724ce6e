"""What a damaged database can still give is not lost."""

import random
import sqlite3
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.schema import STEPS, upgrade
from tests.app.store.conftest import ask, finish, new_chat, reply

PAGE = 4096


def fill(path: Path, n_chats: int = 6, n_turns: int = 6) -> None:
    with ChatStore(path) as store:
        for n in range(n_chats):
            chat, message = new_chat(store, f"chat {n}"), None
            for turn in range(n_turns):
                question = ask(store, chat, message, f"question {turn} " * 30)
                message = finish(store, reply(store, chat, question), f"answer {turn} " * 30)
            store.set_kept_from(chat.id, message.id if message else None, summary="so far")


def read_everything(store: ChatStore) -> dict[str, int]:
    """Read all that the store holds, and give how many messages each chat shows."""
    shown = {}
    for chat in store.list_chats(archived=None):
        tree = store.tree(chat.id)
        path = [] if chat.head_id is None else store.path_to(chat.head_id)
        assert {message.id for message in path} <= {message.id for message in tree.messages}
        shown[chat.title] = len(path)
    return shown


def test_a_damaged_index_costs_no_message(path: Path) -> None:
    fill(path)
    database = sqlite3.connect(path)
    root = database.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'message_index_data'"
    ).fetchone()[0]
    database.close()
    data = bytearray(path.read_bytes())
    data[(root - 1) * PAGE : root * PAGE] = b"\xff" * PAGE
    path.write_bytes(data)
    with ChatStore(path) as store:
        assert "6 chats with 72 messages could be read" in store.notices[0]
        assert read_everything(store) == {f"chat {n}": 12 for n in range(6)}
        assert len(store.search("answer", limit=100)) == 36
        chat = store.list_chats()[0]
        assert chat.summary == "so far"
        assert store.tree(chat.id).messages[1].token_ids == (1, 2, 3)
        assert ask(store, chat, None, "more").id > 72


def test_an_old_database_is_salvaged_too(path: Path) -> None:
    path.parent.mkdir()
    database = sqlite3.connect(path, isolation_level=None)
    upgrade(database, path, STEPS[:1])
    database.execute(
        "INSERT INTO chats (title, created_at, updated_at, system_prompt, sampling)"
        " VALUES ('kept', 1.0, 1.0, '', '{}')"
    )
    database.execute("PRAGMA writable_schema = ON")
    database.execute("UPDATE sqlite_schema SET rootpage = 3 WHERE name = 'messages_by_parent'")
    database.close()
    with ChatStore(path) as store:
        assert [chat.title for chat in store.list_chats()] == ["kept"]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_damaged_what_opens_can_be_read(path: Path, seed: int) -> None:
    fill(path)
    source = random.Random(seed)
    data = bytearray(path.read_bytes())
    for _ in range(source.choice((1, 3, 30))):
        place = source.randrange(100, len(data))
        length = source.choice((1, 16, PAGE))
        data[place : place + length] = source.randbytes(len(data[place : place + length]))
    path.write_bytes(data)
    with ChatStore(path) as store:
        is_whole = not store.notices
        shown = read_everything(store)
        store.search("answer")
        store.search("an")
        ask(store, new_chat(store, "goes on"), None, "a question")
    assert not is_whole or len(shown) == 6


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
