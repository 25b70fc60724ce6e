import sqlite3
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.schema import STEPS, upgrade, version_of

ADD_COLUMN = "ALTER TABLE chats ADD COLUMN note TEXT; CREATE INDEX chats_by_note ON chats(note)"


def database_of(path: Path, steps: tuple[str, ...]) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    upgrade(database, path, steps)
    return database


@pytest.mark.parametrize("n_steps", range(len(STEPS) + 1))
def test_a_file_of_every_earlier_version_opens_and_works(path: Path, n_steps: int) -> None:
    path.parent.mkdir()
    database_of(path, STEPS[:n_steps]).close()
    with ChatStore(path) as store:
        assert store.list_chats() == []
        assert store.notices == ()
        assert store._writer.run(version_of) == len(STEPS)


def test_a_chat_of_version_1_is_read_with_its_tree(path: Path) -> None:
    path.parent.mkdir()
    database = database_of(path, STEPS[:1])
    database.execute(
        "INSERT INTO chats (id, title, created_at, updated_at, system_prompt, sampling)"
        " VALUES (1, 'old', 1.0, 2.0, 's', '{\"temperature\": 0.5, \"long_gone\": 1}')"
    )
    database.execute(
        "INSERT INTO messages (id, chat_id, role, content, created_at)"
        " VALUES (1, 1, 'user', 'q', 1.0)"
    )
    database.execute("UPDATE chats SET head_id = 1")
    database.close()
    with ChatStore(path) as store:
        chat = store.chat(1)
        assert (chat.title, chat.updated_at, chat.sampling.temperature) == ("old", 2.0, 0.5)
        assert [m.content for m in store.path_to(chat.head_id or 0)] == ["q"]


def test_a_further_step_keeps_what_the_earlier_ones_made(path: Path) -> None:
    path.parent.mkdir()
    database = database_of(path, STEPS)
    database.execute(
        "INSERT INTO chats (title, created_at, updated_at, system_prompt, sampling)"
        " VALUES ('kept', 1.0, 1.0, '', '{}')"
    )
    upgrade(database, path, (*STEPS, ADD_COLUMN))
    assert version_of(database) == len(STEPS) + 1
    assert database.execute("SELECT title, note FROM chats").fetchall() == [("kept", None)]
    database.close()


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    path.parent.mkdir()
    database = database_of(path, STEPS)
    with pytest.raises(sqlite3.OperationalError):
        upgrade(database, path, (*STEPS, f"{ADD_COLUMN}; SELECT nonsense FROM nowhere"))
    assert version_of(database) == len(STEPS)
    columns = [row[1] for row in database.execute("PRAGMA table_info(chats)")]
    assert "note" not in columns
    database.close()
