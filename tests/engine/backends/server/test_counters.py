"""Prometheus texts of servers become lines of the panels, with what they are counted over."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from engine.backends.server import session as session_module
from engine.backends.server.counters import read_samples
from engine.backends.server.http import TimeLimits
from engine.backends.server.session import ServerSession
from engine.configuration import Configuration
from engine.events import Event, ServerFigures
from engine.requests import Cancellation, GenerationRequest
from tests.support.hostile_language_server import LanguageServer, serving
from tests.support.waiting import wait_until


def text_of(reported: ServerFigures, panel: str) -> str:
    return " | ".join(figure.text for figure in reported.figures if figure.panel == panel)


def test_samples_are_added_up_over_their_labels_and_junk_is_left_out() -> None:
    text = 'a{x="1"} 2\na{x="2"} 3\n# a 9\nb NaN\nc +Inf\nd x\n e 1\nf 1.5 1712\n'
    assert read_samples(text) == {"a": 5.0, "f": 1.5}


@contextmanager
def watching(server: LanguageServer) -> Iterator[tuple[ServerSession, list[str]]]:
    """A session, and the texts of its panels."""
    reported: list[str] = []

    def report(event: Event) -> None:
        if isinstance(event, ServerFigures):
            reported.append(text_of(event, "cache") + " " + text_of(event, "throughput"))

    session = ServerSession(Configuration.at_server(server.url), emit=report)
    session.watch()
    try:
        yield session, reported
    finally:
        session.close()


def test_what_a_server_does_is_shown_as_it_changes_without_a_reply(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "LOOK_S", 0.01)
    with serving("llama-server") as server, watching(server) as (_, reported):
        wait_until(lambda: bool(reported) and "0 of 1" in reported[-1])
        server.is_at_work = True
        wait_until(lambda: "1 of 1" in reported[-1])
        server.is_at_work = False
        wait_until(lambda: "0 of 1" in reported[-1])


def test_a_server_that_does_nothing_is_left_alone_and_the_panel_shows_the_time_of_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_module, "LOOK_S", 0.01)
    monkeypatch.setattr(session_module, "IDLE_S", 0.05)
    with serving("llama-server") as server, watching(server) as (session, reported):
        wait_until(lambda: bool(reported) and "as of" in reported[-1])
        monkeypatch.setattr(session_module, "IDLE_S", 60.0)
        session.begin(GenerationRequest(raw_prompt="Hello"), Cancellation())
        while session.step():
            pass
        wait_until(lambda: "as of" not in reported[-1])


def test_counters_that_are_slow_hold_up_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "LOOK_LIMITS", TimeLimits(answer_s=60.0))
    with serving("llama-server") as server:
        server.metrics = "llamacpp:requests_processing 1\n"
        server.misdeed = "slow counters"
        with watching(server) as (session, reported):
            generation = session.begin(GenerationRequest(raw_prompt="Hello"), Cancellation())
            while session.step():
                pass
            session.keep()
            assert generation.fault is None
            assert not reported, "the counters did not come yet"
