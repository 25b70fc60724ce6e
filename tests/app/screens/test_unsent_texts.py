"""A text is in the input or a message, never both and never neither, whenever kvchat is killed."""

import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from app.chat.outbox import Outbox
from app.store.chats import ChatStore
from app.store.errors import StoreError
from tests.support.fakes_app import answered, ask, opened, wait_until
from tests.support.fakes_client import CONFIGURATION, Script, loaded


def unsent(store: ChatStore) -> list[str]:
    """The unsent texts as they are on disk."""
    return rows(store, "SELECT content FROM drafts")


def questions(store: ChatStore) -> list[str]:
    return rows(store, "SELECT content FROM messages WHERE role = 'user' ORDER BY id")


def rows(store: ChatStore, query: str) -> list[str]:
    with closing(sqlite3.connect(store.path)) as database:
        return [row[0] for row in database.execute(query)]


@pytest.mark.parametrize("n_before", [0, 1])
async def test_a_text_becomes_a_question_in_one_write(
    n_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as (_, _, pilot, chat):
        store = chat.conversation.history.store
        for _ in range(n_before):
            await answered(pilot, chat, "before")
        chat.composer.put("to be asked")
        await pilot.pause()
        chat.outbox.save()
        store.flush()
        assert unsent(store) == ["to be asked"]
        with monkeypatch.context() as patch:
            patch.setattr(Outbox, "save", lambda _: None)  # killed before anything else is saved
            await pilot.press("enter")
            await wait_until(pilot, lambda: "to be asked" in questions(store))
            assert unsent(store) == []


async def test_a_text_queued_for_the_model_is_saved_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, chat):
        chat.conversation.meters.start_load(CONFIGURATION)
        chat.composer.put("asked while it loads")
        chat.action_send()
        assert unsent(chat.conversation.history.store) == ["asked while it loads"]
        client.emit(loaded(CONFIGURATION))
        await wait_until(pilot, lambda: questions(chat.conversation.history.store))
        assert unsent(chat.conversation.history.store) == []


async def test_a_second_queued_text_stays_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, Script(replies=("word " * 40,), tps=1)) as (_, client, pilot, chat):
        store = chat.conversation.history.store
        for text in ("first", "second", "third"):
            await ask(pilot, chat, text)
        assert unsent(store) == ["second\n\nthird"]
        client.script = replace(client.script, tps=40)
        monkeypatch.setattr(Outbox, "save", lambda _: None)
        await wait_until(pilot, lambda: questions(store) == ["first", "second"])
        assert unsent(store) == ["third"]
        monkeypatch.undo()
        await wait_until(pilot, lambda: questions(store) == ["first", "second", "third"])
        assert unsent(store) == []


async def test_a_question_that_is_not_saved_stays_unsent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(store: ChatStore, *_: object) -> None:
        if store.unsent_of is not None:
            store.unsent_of(None)
        raise StoreError("no space is left")

    async with opened(tmp_path) as (_, _, pilot, chat):
        monkeypatch.setattr(ChatStore, "add_messages", fails)
        await ask(pilot, chat, "not lost")
        await pilot.pause()
        assert chat.composer.text == "not lost"
        chat.outbox.save()
        chat.conversation.history.store.flush()
        assert unsent(chat.conversation.history.store) == ["not lost"]


@pytest.mark.faults
async def test_a_bug_while_sending_loses_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, Script(replies=("word " * 40,), tps=20)) as (_, _, pilot, chat):
        for text in ("first", "second"):
            await ask(pilot, chat, text)
        monkeypatch.setattr(chat.conversation, "send", None)
        await wait_until(pilot, lambda: chat.composer.text == "second")


async def test_an_unsaved_text_is_saved_later(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (_, _, pilot, chat):
        store = chat.conversation.history.store
        with closing(sqlite3.connect(store.path)) as database:
            database.execute("ALTER TABLE drafts RENAME TO elsewhere")
            database.commit()
            chat.composer.put("written on a full disk")
            await pilot.pause()
            chat.outbox.save()
            with suppress(StoreError):
                store.flush()
            database.execute("ALTER TABLE elsewhere RENAME TO drafts")
            database.commit()
        chat.outbox.save()
        with suppress(StoreError):
            store.flush()
        assert unsent(store) == ["written on a full disk"]
