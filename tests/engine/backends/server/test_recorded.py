"""What vLLM 0.32.0 answered; what SGLang 0.5.23 and Ollama 0.33.0-rc2 do by their sources."""

import pytest

from engine.backends.server.facts import Program, ask_facts
from engine.backends.server.http import Http, TimeLimits
from engine.backends.server.session import ServedGeneration, ServerSession
from engine.configuration import Configuration
from engine.errors import ContextFullError
from engine.events import Finished, FinishReason
from engine.requests import Cancellation, GenerationRequest, Message
from engine.servers import KEY_VARIABLE
from tests.support.recorded_server import replaying

ASKED = GenerationRequest(messages=(Message("user", "Name three colours."),), max_tokens=24, seed=1)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


def ended(session: ServerSession, request: GenerationRequest = ASKED) -> ServedGeneration:
    generation = session.begin(request, Cancellation())
    while session.step():
        pass
    return generation


def finished(session: ServerSession, request: GenerationRequest = ASKED) -> Finished:
    *_, last = ended(session, request).take()
    assert isinstance(last, Finished)
    return last


def reported_by(session: ServerSession) -> str:
    return "\n".join(figure.text for figure in session.look().figures)


@pytest.mark.parametrize(
    ("name", "program", "version", "n_ctx"),
    [
        ("vllm", "vLLM", "0.32.0", 1024),
        ("sglang", "SGLang", "0.5.23", 8192),
        ("ollama", "Ollama", "0.33.0-rc2", None),
    ],
)
def test_each_is_recognised_with_its_version_and_context(
    name: str, program: Program, version: str, n_ctx: int | None
) -> None:
    with replaying(name) as server:
        assert (server.program, server.version) == (program, version)
        http = Http(server.url, TimeLimits())
        facts = ask_facts(http, None)
    assert (facts.program, facts.version, facts.n_ctx) == (program, version, n_ctx)
    assert facts.has_metrics == (program != "Ollama")


def test_vllm_reports_text_counts_drafts_and_reasons() -> None:
    with replaying("vllm") as server:
        session = ServerSession(Configuration.at_server(server.url))
        session.look()
        first = finished(session)
        assert (first.text, first.reason) == ("A b c d e f.", FinishReason.END)
        assert (first.stats.n_prompt, first.stats.n_emitted, first.stats.n_reused) == (45, 8, 0)
        raw = finished(session, GenerationRequest(raw_prompt="One two three", max_tokens=8))
        assert (raw.text, raw.reason) == ("-one-two-three-two", FinishReason.LENGTH)
        stopped = finished(session)
        assert stopped.reason is FinishReason.STOP_STRING
        assert stopped.text == "1. Red: The most obvious colour"
        assert isinstance(ended(session).fault, ContextFullError)
        session.close()
    asked = [body for path, body in server.asked if path == "/v1/chat/completions"]
    assert asked[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_sglang_reports_text_counts_and_gauges() -> None:
    with replaying("sglang") as server:
        session = ServerSession(Configuration.at_server(server.url))
        reported = reported_by(session)
        assert all(
            figure in reported for figure in ("1 reply", "2 wait", "28%", "41%", "2.75 tokens")
        )
        reply = finished(session)
        assert (reply.text, reply.reason) == ("Red, green blue", FinishReason.END)
        stats = reply.stats
        assert (stats.n_prompt, stats.n_reused, stats.n_emitted) == (33, 21, 6)
        assert isinstance(ended(session).fault, ContextFullError)
        session.close()
