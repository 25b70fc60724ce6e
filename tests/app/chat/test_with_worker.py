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
def controller(tmp_path: Path) -> Iterator[Conversation]:
    client = WorkerClient(log_path=tmp_path / "engine.log")
    store = ChatStore(tmp_path / "chats.db")
    controller = Conversation(
        client, store, sampling=SamplingSettings(temperature=0.0), max_tokens=200
    )
    yield controller
    controller.close()
    store.close()


def wait(controller: Conversation, is_so: Callable[[], object]) -> None:
    def is_so_now() -> bool:
        if is_so():
            return True
        controller.poll()
        return False

    wait_until(is_so_now)


def test_a_reply_goes_on_after_its_engine_was_killed_in_the_middle(
    controller: Conversation, starter_path: Path
) -> None:
    configuration = Configuration(starter_path, n_ctx=512, n_threads=1)
    controller.load(configuration)
    wait(controller, lambda: controller.can_ask)
    controller.send("Count from one to a hundred in words.")
    wait(controller, lambda: len(controller.entries()[-1].content) > 40)
    for process in psutil.Process().children():
        if "engine.process.worker" in process.cmdline():
            os.kill(process.pid, signal.SIGKILL)
    wait(controller, lambda: controller.meters.phase is Phase.STOPPED)
    cut = controller.entries()[1]
    assert CUT_BY_CRASH in cut.ending
    assert cut.ending.endswith("{composer-send} in the empty composer continues the reply")
    controller.load(configuration)
    wait(controller, lambda: controller.can_ask)
    assert controller.continue_reply()
    wait(controller, lambda: len(controller.entries()[-1].content) > len(cut.content) + 8)
    assert controller.entries()[-1].content.startswith(cut.content)


def test_a_load_before_the_next_frame_is_the_only_one_that_counts(
    controller: Conversation, starter_path: Path
) -> None:
    controller.load(Configuration(starter_path, n_ctx=512, n_threads=1))
    wait_for_client(controller)
    controller.load(Configuration(starter_path, n_ctx=1024, n_threads=1))
    controller.poll()
    assert controller.loaded is None
    assert not controller.can_ask
    wait(controller, lambda: controller.can_ask)
    assert controller.loaded is not None
    assert controller.loaded.n_ctx == 1024


def wait_for_client(controller: Conversation) -> None:
    """Let the engine say that it is ready, and let nobody hear it."""
    wait_until(lambda: controller.client.is_alive)


def test_what_a_new_chat_begins_with_is_in_the_cache_when_it_is_asked(
    tmp_path: Path, starter_path: Path
) -> None:
    instruction = "You answer in one short sentence and never tell anybody why. " * 4
    client = WorkerClient(log_path=tmp_path / "engine.log")
    with ChatStore(tmp_path / "chats.db") as store:
        controller = Conversation(
            client, store, sampling=SamplingSettings(temperature=0.0), max_tokens=4,
            system_prompt=instruction,
        )  # fmt: skip
        controller.load(Configuration(starter_path, n_ctx=512, n_threads=1))
        wait(controller, lambda: controller.can_ask)
        controller.send("What is a cache?")
        wait(controller, lambda: not controller.is_replying)
        head = controller.history.head_id
        assert head is not None
        reply = controller.history.message(head)
        controller.close()
    assert reply.stats is not None
    assert reply.stats["n_reused"] > 40
