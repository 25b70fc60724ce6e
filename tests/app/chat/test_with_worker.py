"""The chat with a real engine: one that is killed, and one that another takes the place of."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from app.chat.conversation import Conversation
from app.chat.entries import CUT_BY_CRASH
from app.chat.snapshot import Phase
from app.store.chats import ChatStore
from engine.configuration import Configuration, SamplingSettings
from engine.process.client import WorkerClient
from tests.support.waiting import wait_until

pytestmark = pytest.mark.model


@pytest.fixture
def conversation(tmp_path: Path) -> Iterator[Conversation]:
    client = WorkerClient(log_path=tmp_path / "engine.log")
    store = ChatStore(tmp_path / "chats.db")
    conversation = Conversation(
        client, store, sampling=SamplingSettings(temperature=0.0), max_tokens=200
    )
    yield conversation
    conversation.close()
    store.close()


def wait(conversation: Conversation, is_so: Callable[[], object]) -> None:
    def is_so_now() -> bool:
        if is_so():
            return True
        conversation.poll()
        return False

    wait_until(is_so_now)


def test_a_reply_continues_after_its_engine_was_killed(
    conversation: Conversation, starter_path: Path
) -> None:
    configuration = Configuration(starter_path, n_ctx=512, n_threads=1)
    conversation.load(configuration)
    wait(conversation, lambda: conversation.can_ask)
    conversation.send("Count from one to a hundred in words.")
    wait(conversation, lambda: len(conversation.entries()[-1].content) > 40)
    for process in psutil.Process().children():
        if "engine.process.worker" in process.cmdline():
            os.kill(process.pid, signal.SIGKILL)
    wait(conversation, lambda: conversation.meters.phase is Phase.STOPPED)
    cut = conversation.entries()[1]
    assert CUT_BY_CRASH in cut.ending
    assert cut.ending.endswith("{composer-send} in the empty composer continues the reply")
    conversation.load(configuration)
    wait(conversation, lambda: conversation.can_ask)
    assert conversation.continue_reply()
    wait(conversation, lambda: len(conversation.entries()[-1].content) > len(cut.content) + 8)
    assert conversation.entries()[-1].content.startswith(cut.content)


def test_the_last_of_two_loads_counts(conversation: Conversation, starter_path: Path) -> None:
    conversation.load(Configuration(starter_path, n_ctx=512, n_threads=1))
    wait_for_client(conversation)
    conversation.load(Configuration(starter_path, n_ctx=1024, n_threads=1))
    conversation.poll()
    assert conversation.loaded is None
    assert not conversation.can_ask
    wait(conversation, lambda: conversation.can_ask)
    assert conversation.loaded is not None
    assert conversation.loaded.n_ctx == 1024


def wait_for_client(conversation: Conversation) -> None:
    """Let the engine report that it is ready, unread."""
    wait_until(lambda: conversation.client.is_alive)


def test_what_a_new_chat_begins_with_is_in_the_cache_when_it_is_asked(
    tmp_path: Path, starter_path: Path
) -> None:
    instruction = "You answer in one short sentence and never explain it. " * 4
    client = WorkerClient(log_path=tmp_path / "engine.log")
    with ChatStore(tmp_path / "chats.db") as store:
        conversation = Conversation(
            client, store, sampling=SamplingSettings(temperature=0.0), max_tokens=4,
            system_prompt=instruction,
        )  # fmt: skip
        conversation.load(Configuration(starter_path, n_ctx=512, n_threads=1))
        wait(conversation, lambda: conversation.can_ask)
        conversation.send("What is a cache?")
        wait(conversation, lambda: not conversation.is_replying)
        head = conversation.history.head_id
        assert head is not None
        reply = conversation.history.message(head)
        conversation.close()
    assert reply.stats is not None
    assert reply.stats["n_reused"] > 40
