"""Chats that resume: the real starter model, a real process, a real folder."""

import subprocess
import sys
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from weakref import WeakKeyDictionary

import pytest

from engine.cache.namespace import Namespace
from engine.cache.report import CacheReport, CacheSettings
from engine.cache.store import SegmentStore
from engine.configuration import Configuration, KVTypeName
from engine.events import (
    Event,
    Failed,
    Finished,
    Loaded,
    PromptProgress,
    PromptReady,
    TiersChanged,
    TokensCommitted,
    WorkerStopped,
)
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest, Message
from tests.engine.cache.making import payload_of, state_of
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.model
TEXT = " ".join(f"Item {n} costs {n * 7 % 13} coins." for n in range(12))
ASKED = GenerationRequest((Message("user", TEXT),), max_tokens=40, seed=1, owner="chat:1")

UNREAD: WeakKeyDictionary[WorkerClient, deque[Event]] = WeakKeyDictionary()
"""What came together with an event that was waited for."""


class StartClient(Protocol):
    def __call__(self, kv: KVTypeName = "f16") -> WorkerClient: ...


def until(client: WorkerClient, is_last: Callable[[Event], bool]) -> list[Event]:
    events: list[Event] = []
    deadline = time.monotonic() + PATIENCE_S
    unread = UNREAD.setdefault(client, deque())
    while time.monotonic() < deadline:
        unread += () if unread else client.poll(0.1)
        while unread:
            events.append(unread.popleft())
            if is_last(events[-1]):
                return events
            assert not isinstance(events[-1], Failed | WorkerStopped), events[-1]
    raise AssertionError(f"no last event among {[type(event).__name__ for event in events]}")


def answer(client: WorkerClient, request: GenerationRequest) -> tuple[Finished, list[Event]]:
    client.generate(request)
    events = until(client, lambda event: isinstance(event, Finished))
    assert isinstance(events[-1], Finished)
    return events[-1], events


def report_in(client: WorkerClient, is_it: Callable[[CacheReport], bool]) -> CacheReport:
    events = until(client, lambda e: isinstance(e, TiersChanged) and is_it(e.report))
    assert isinstance(events[-1], TiersChanged)
    return events[-1].report


@pytest.fixture
def start(tmp_path: Path, starter_path: Path) -> Iterator[StartClient]:
    clients: list[WorkerClient] = []

    def begin(kv: KVTypeName = "f16") -> WorkerClient:
        client = WorkerClient(
            log_path=tmp_path / "engine.log",
            cache=CacheSettings(folder=tmp_path / "states", checkpoint_tokens=64),
        )
        clients.append(client)
        client.load(
            Configuration(model_path=starter_path, n_ctx=2048, n_threads=1, type_k=kv, type_v=kv)
        )
        until(client, lambda event: isinstance(event, Loaded))
        return client

    yield begin
    for client in clients:
        client.close()


def test_states_of_another_build_stay_and_are_not_used(start: StartClient, tmp_path: Path) -> None:
    other = Namespace("00" * 16, "/models/one.gguf", (("format", "llama.cpp state 2 00ff"),))
    state = state_of([1, 2, 3], namespace=other)
    with SegmentStore(tmp_path / "states") as store:
        store.write(other, state, payload_of(state))
    client = start()
    assert not report_in(client, lambda report: len(report.tiers) > 1).entries
    answer(client, ASKED)
    client.close()
    with SegmentStore(tmp_path / "states") as store:
        assert state in store.segments()


def test_a_chat_goes_on_from_disk_after_a_restart(start: StartClient) -> None:
    client = start()
    first, _ = answer(client, ASKED)
    client.close()

    again, events = answer(start(), ASKED)
    ready = next(event for event in events if isinstance(event, PromptReady))

    assert again.text == first.text
    assert ready.n_cold == ready.n_reused == again.stats.n_prompt - 1


def test_a_reply_that_was_cut_by_closing_goes_on_without_a_prefill(start: StartClient) -> None:
    client = start()
    client.generate(GenerationRequest(ASKED.messages, seed=1, owner="chat:1"))
    events = until(client, lambda event: isinstance(event, TokensCommitted) and event.tokens)
    events += until(client, lambda event: isinstance(event, TokensCommitted) and event.tokens)
    known = tuple(
        token.token
        for event in events
        if isinstance(event, TokensCommitted)
        for token in event.tokens
    )
    client.close()

    going_on = GenerationRequest(
        ASKED.messages, max_tokens=4, seed=1, owner="chat:1", continues=known
    )
    reply, events = answer(start(), going_on)
    progress = next(event for event in events if isinstance(event, PromptProgress))

    assert reply.token_ids[: len(known)] == known
    assert progress.n_total - progress.n_reused < 32  # fewer than a state of its own is worth


def test_computed_states_are_saved_if_the_front_end_is_killed(
    start: StartClient, tmp_path: Path, starter_path: Path
) -> None:
    script = textwrap.dedent(
        f"""
        import os
        from pathlib import Path
        from engine.cache.report import CacheSettings
        from engine.configuration import Configuration
        from engine.events import Finished, Loaded
        from engine.requests import GenerationRequest, Message
        from engine.process.client import WorkerClient

        client = WorkerClient(
            log_path=Path({str(tmp_path)!r}) / "killed.log",
            cache=CacheSettings(folder=Path({str(tmp_path)!r}) / "states"),
        )
        client.load(Configuration(model_path=Path({str(starter_path)!r}), n_ctx=2048, n_threads=1))
        def wait(kind):
            while not any(isinstance(event, kind) for event in client.poll(0.2)):
                pass
        wait(Loaded)
        messages = (Message("user", {TEXT!r}),)
        client.generate(GenerationRequest(messages, max_tokens=40, seed=1, owner="chat:1"))
        wait(Finished)
        os.kill(os.getpid(), 9)
        """
    )
    subprocess.run([sys.executable, "-c", script], timeout=PATIENCE_S, check=False)
    with SegmentStore(tmp_path / "states") as store:
        wait_until(store.segments, "the worker wrote")

    again, _ = answer(start(), ASKED)

    assert again.stats.n_reused == again.stats.n_prompt - 1


def report_of(client: WorkerClient) -> CacheReport:
    return report_in(client, lambda report: True)


@pytest.mark.slow
def test_a_conversation_is_brought_into_memory_before_it_is_asked(start: StartClient) -> None:
    client = start()
    first, _ = answer(client, ASKED)
    client.close()
    client = start()

    client.prefetch(ASKED.messages)
    report_in(client, lambda report: report.tiers[1].n_tokens >= first.stats.n_prompt - 1)
    _, events = answer(client, ASKED)
    ready = next(event for event in events if isinstance(event, PromptReady))

    assert ready.n_warm == ready.n_reused > 0


@pytest.mark.slow
def test_without_budgets_nothing_is_saved(tmp_path: Path, starter_path: Path) -> None:
    client = WorkerClient(log_path=tmp_path / "engine.log")
    client.load(Configuration(model_path=starter_path, n_ctx=2048, n_threads=1))
    until(client, lambda event: isinstance(event, Loaded))
    answer(client, ASKED)
    report = report_of(client)
    client.close()

    assert [tier.name for tier in report.tiers] == ["hot"]
    assert not list(tmp_path.glob("states*"))
