"""A worker over a fake model: its answers reach the front end, also where a reply fails."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.events import Event, Failed, TokensCommitted, TokensCounted
from engine.process.client import WorkerClient
from engine.requests import GenerationRequest, Message
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
FAILING_WORKER = f"""
import sys
from multiprocessing.connection import Connection

sys.path.insert(0, {str(ROOT)!r})
from engine import load
from engine.errors import DecodeError
from engine.process import worker
from engine.testing import FakeBackend
from tests.support.fakes_client import loaded
from tests.support.sessions import make_session


class Failing(FakeBackend):
    def logits_after(self, tokens):
        if self.n_decodes > 12:
            raise DecodeError("llama_decode gave -3")
        return super().logits_after(tokens)


def load_session(configuration, *_):
    backend = Failing(sharpness=2.0)
    return load.LoadedSession(make_session(target=backend), loaded(configuration), backend)


load.load_session = load_session
worker.SEND_EVERY_S = 3600.0
worker.Worker(Connection(int(sys.argv[1]))).run()
"""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[WorkerClient]:
    script = tmp_path / "worker.py"
    script.write_text(FAILING_WORKER)
    client = WorkerClient(log_path=tmp_path / "log", command=(sys.executable, str(script)))
    client.load(Configuration(Path("fake.gguf"), n_ctx=256))
    yield client
    client.close()


def events_up_to(client: WorkerClient, kind: type[Event]) -> list[Event]:
    events: list[Event] = []

    def has_come() -> bool:
        events.extend(client.poll(0.05))
        return any(isinstance(event, kind) for event in events)

    wait_until(has_come)
    return events


def test_what_was_committed_before_a_failure_reaches_the_front_end(client: WorkerClient) -> None:
    wait_until(lambda: client.is_alive and not client.is_busy)
    client.generate(GenerationRequest((Message("user", "abc"),), max_tokens=60, seed=1))
    events = events_up_to(client, Failed)
    assert sum(isinstance(event, TokensCommitted) for event in events) == 11
    [failed] = (event for event in events if isinstance(event, Failed))
    assert "-3" in failed.message


def test_a_text_is_counted_as_a_prompt_would_hold_it(client: WorkerClient) -> None:
    wait_until(lambda: client.is_alive and not client.is_busy)
    client.count_tokens(7, "abc<end>")
    [counted] = (e for e in events_up_to(client, TokensCounted) if isinstance(e, TokensCounted))
    assert counted == TokensCounted(7, 4)
