"""A file of another version, or of another program, is refused in words and left as it is."""

import sqlite3
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.database import problem_of
from app.store.errors import StoreError
from app.store.schema import VERSION
from tests.app.store.conftest import ask, new_chat


def run(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


@pytest.mark.parametrize("version", [-1, 0, VERSION, VERSION + 1, 7, 2**31 - 1])
@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE chats (id INTEGER PRIMARY KEY)",
        "CREATE TABLE drafts (x); CREATE TABLE messages (x)",
    ],
)
def test_tables_of_another_shape_are_refused_and_stay(
    path: Path, version: int, change: str
) -> None:
    path.parent.mkdir()
    run(path, *change.split(";"), f"PRAGMA user_version = {version}")
    for _ in range(2):
        with pytest.raises(StoreError) as refused:
            ChatStore(path)
        assert f"version {version}" in str(refused.value)
        assert "export --all" in str(refused.value)
        assert "export --all" in str(problem_of(path))
    database = sqlite3.connect(path)
    names = {row[0] for row in database.execute("SELECT name FROM sqlite_schema")}
    assert database.execute("PRAGMA user_version").fetchone() == (version,)
    assert names <= {"chats", "messages", "drafts"}
    database.close()


@pytest.mark.parametrize("version", [-1, VERSION + 1, 2**31 - 1])
def test_another_version_is_refused_and_its_chats_stay(path: Path, version: int) -> None:
    with ChatStore(path) as store:
        new_chat(store)
    run(path, f"PRAGMA user_version = {version}")
    with pytest.raises(StoreError, match="export --all"):
        ChatStore(path)
    run(path, f"PRAGMA user_version = {VERSION}")
    with ChatStore(path) as store:
        assert len(store.list_chats()) == 1


def test_chats_that_a_tool_of_sqlite_wrote_without_their_version_are_opened(path: Path) -> None:
    with ChatStore(path) as store:
        ask(store, new_chat(store, "old"), None, "q")
    copied = path.with_name("copied.db")
    source, copy = sqlite3.connect(path), sqlite3.connect(copied)
    copy.executescript("\n".join(source.iterdump()))
    source.close()
    copy.close()
    for _ in range(2):
        with ChatStore(copied) as store:
            assert [chat.title for chat in store.list_chats()] == ["old"]


def test_what_keeps_the_chats_from_being_opened_is_found_without_changing_them(path: Path) -> None:
    assert problem_of(path) is None
    ChatStore(path).close()
    assert problem_of(path) is None
    path.write_bytes(b"no database" * 1000)
    assert "not a database" in str(problem_of(path))
