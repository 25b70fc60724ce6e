"""A store in a folder of its own, and the shortest ways to fill it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.store.chats import ChatStore
from app.store.records import Chat, StoredMessage
from tests.support.chats import add_chat, add_message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[ChatStore]:
    with ChatStore(path) as store:
        yield store


def new_chat(store: ChatStore, title: str = "a chat") -> Chat:
    return add_chat(store, Chat(title=title, model_path="/m.gguf"))


def ask(store: ChatStore, chat: Chat, parent: StoredMessage | None, text: str) -> StoredMessage:
    return add_message(store, chat.id, parent.id if parent else None, "user", text)


def reply(store: ChatStore, chat: Chat, parent: StoredMessage, text: str = "") -> StoredMessage:
    return add_message(store, chat.id, parent.id, "assistant", text)


def finish(store: ChatStore, message: StoredMessage, text: str) -> StoredMessage | None:
    return store.finish_message(
        replace(
            store.message(message.id),
            content=text,
            token_ids=(1, 2, 3),
            vocabulary_id="v",
            seed=7,
            finish_reason="end",
            stats={"n_emitted": 3},
        ),
    )
