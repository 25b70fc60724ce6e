import hashlib
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.database import problem_of
from app.store.errors import StoreError
from app.store.schema import STEPS, statements_of, upgrade, version_of

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
        assert len(store.notices) == (0 < n_steps < len(STEPS))
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


def test_messages_of_version_2_are_found_by_their_words(path: Path) -> None:
    path.parent.mkdir()
    database = database_of(path, STEPS[:2])
    database.execute(
        "INSERT INTO chats (id, title, created_at, updated_at, system_prompt, sampling)"
        " VALUES (1, 'old', 1.0, 2.0, '', '{}')"
    )
    database.executemany(
        "INSERT INTO messages (id, chat_id, parent_id, role, content, finish_reason, created_at)"
        " VALUES (?, 1, ?, ?, ?, ?, 1.0)",
        [
            (1, None, "user", "which cache", None),
            (2, 1, "assistant", "the prefix cache", "end"),
            (3, 1, "assistant", "half a cache", None),
        ],
    )
    database.execute("UPDATE chats SET head_id = 3")
    database.close()
    with ChatStore(path) as store:
        assert [hit.message_id for hit in store.search("cache")] == [3, 2, 1]
        chat = store.chat(1)
        assert (chat.head_id, chat.archived_at, chat.kept_from, chat.summary) == (3, *[None] * 3)
        store.delete_chat(1)
        assert store.search("cache") == []


UPGRADER = """
import sqlite3, sys
from pathlib import Path
from app.store.schema import STEPS, upgrade
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.create_function("tell", 0, lambda: print("in the middle", flush=True))
slow = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
upgrade(database, Path(sys.argv[1]), (*STEPS, f"SELECT tell(); {slow}"))
"""


def test_an_upgrade_that_is_killed_in_the_middle_is_made_at_the_next_start(path: Path) -> None:
    path.parent.mkdir()
    database = database_of(path, STEPS[:2])
    database.execute("PRAGMA journal_mode = WAL")
    database.execute(
        "INSERT INTO chats (title, created_at, updated_at, system_prompt, sampling)"
        " VALUES ('kept', 1.0, 1.0, '', '{}')"
    )
    database.close()
    killed = subprocess.Popen([sys.executable, "-c", UPGRADER, path], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    assert killed.stdout.readline() == b"in the middle\n"
    killed.kill()
    killed.communicate()
    database = sqlite3.connect(path)
    assert version_of(database) == 2
    database.close()
    with ChatStore(path) as store:
        assert [hit.title for hit in store.search("kept")] == ["kept"]
        assert store._writer.run(version_of) == len(STEPS)


def test_a_step_is_cut_into_statements_and_a_trigger_stays_whole() -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT ';'; DELETE FROM a; END"
    step = f"CREATE TABLE a (b); ;{trigger};\n -- a remark; and more\nSELECT 1"
    assert [each.strip() for each in statements_of(step)] == [
        "CREATE TABLE a (b);",
        f"{trigger};",
        "-- a remark; and more\nSELECT 1;",
    ]


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


DIGESTS = (
    "3d607c651592", "02b913cda907", "e969b1f64b20", "8877390f900f", "aae3d2248724",
    "30ec1e0dc3ba", "5f0f32493ee9",
)  # fmt: skip


def test_no_step_changes_once_chats_were_made_with_it() -> None:
    made = [hashlib.sha256(step.encode()).hexdigest()[:12] for step in STEPS]
    assert made[: len(DIGESTS)] == list(DIGESTS)
    assert len(made) == len(DIGESTS), "enter the new step's digest here"


@pytest.mark.parametrize("n_steps", range(1, len(STEPS)))
def test_chats_of_every_earlier_version_are_copied_before_they_are_changed(
    path: Path, n_steps: int
) -> None:
    path.parent.mkdir()
    database = database_of(path, STEPS[:n_steps])
    database.execute(
        "INSERT INTO chats (id, title, created_at, updated_at, system_prompt, sampling)"
        " VALUES (1, 'old', 1.0, 2.0, '', '{}')"
    )
    database.execute(
        "INSERT INTO messages (id, chat_id, role, content, created_at)"
        " VALUES (1, 1, 'user', 'q', 1.0)"
    )
    database.close()
    copy = path.with_name(f"{path.name}.version-{n_steps}")
    with ChatStore(path) as store:
        assert [chat.title for chat in store.list_chats()] == ["old"]
        [notice] = store.notices
        assert str(copy) in notice
    old = sqlite3.connect(copy)
    assert version_of(old) == n_steps
    assert old.execute("SELECT title, content FROM chats, messages").fetchall() == [("old", "q")]
    old.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    with ChatStore(path) as store:
        assert store.notices == ()


def test_chats_that_cannot_be_copied_are_not_changed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    database_of(path, STEPS[:3]).close()
    path.with_name(f"{path.name}.version-3").mkdir()
    monkeypatch.setattr("app.store.database._free_name", lambda *_: path.parent / "no" / "copy")
    with pytest.raises(StoreError, match=r"cannot be written|make room"), ChatStore(path):
        pass
    database = sqlite3.connect(path)
    assert version_of(database) == 3
    database.close()


def test_what_keeps_the_chats_from_being_opened_is_found_without_changing_them(path: Path) -> None:
    path.parent.mkdir()
    assert problem_of(path) is None
    database = database_of(path, STEPS[:2])
    assert problem_of(path) is None
    assert version_of(database) == 2
    database.execute("PRAGMA user_version = 99")
    assert "newer kvchat" in str(problem_of(path))
    database.close()
    path.write_bytes(b"no database" * 1000)
    assert "not a database" in str(problem_of(path))
