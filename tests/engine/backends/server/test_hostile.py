"""Servers that are missing, refuse, break off, lie or never end: each is reported."""

import gc
import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest
from psutil import Process

from engine.backends.server import http
from engine.backends.server.http import (
    ServerBusyError,
    ServerSilentError,
    ServerUnreachableError,
    TimeLimits,
)
from engine.backends.server.served_reply import MAX_DRAFT
from engine.backends.server.session import ServedGeneration, ServerSession
from engine.configuration import Configuration, SamplingSettings, SpeculationSettings
from engine.errors import ContextFullError, EngineError, ServerError
from engine.events import (
    CacheChanged,
    Event,
    Finished,
    FinishReason,
    PromptProgress,
    RoundFinished,
    SpeculationChanged,
    TokensCommitted,
    Waiting,
)
from engine.requests import Cancellation, GenerationRequest, Message
from engine.servers import KEY_VARIABLE, key_of, parse_server
from tests.support.hostile_language_server import (
    DRIPS,
    Kind,
    LanguageServer,
    Misdeed,
    free_port,
    own_certificate,
    serving,
    wait_for_cut,
)

KEY = "sk-very-secret-123"
FAST = TimeLimits(
    connect_s=10.0,
    answer_s=20.0,
    first_s=2.5,
    silence_s=2.5,
    loading_s=20.0,
    pauses_s=(0.01, 0.05),
)
HASTY = replace(FAST, answer_s=0.3, first_s=0.3, silence_s=0.3)
WHOLE = "The cat sat on the mat."
KINDS: tuple[Kind, ...] = ("llama-server", "vLLM", "SGLang", "Ollama", "OpenAI")
ASKED = GenerationRequest(messages=(Message("user", "Hello"),), max_tokens=50)
REPLIES = ("/completion", "/v1/chat/completions")
"""Where replies are asked for."""


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)


@pytest.fixture
def server() -> Iterator[LanguageServer]:
    with serving() as started:
        yield started


def opened(
    server: LanguageServer, model: str | None = None, limits: TimeLimits = FAST
) -> ServerSession:
    return ServerSession(Configuration.at_server(server.url, model, is_trusted=True), limits)


def ended(session: ServerSession, request: GenerationRequest = ASKED) -> ServedGeneration:
    generation = session.begin(request, Cancellation())
    while session.step():
        pass
    return generation


@dataclass
class Reply:
    """How a reply ended, its events, and the number of requests."""

    fault: EngineError | None
    events: list[Event]
    n_asked: int

    @property
    def text(self) -> str:
        return text_of(self.events)

    @property
    def finished(self) -> Finished:
        assert isinstance(self.events[-1], Finished)
        return self.events[-1]


def reply_of(server: LanguageServer, misdeed: Misdeed = "none", limits: TimeLimits = FAST) -> Reply:
    """Open a session while the server behaves, and ask while it does not."""
    session = opened(server, limits=limits)
    server.misdeed = misdeed
    generation = ended(session)
    session.close()
    n_asked = sum(path in REPLIES for path, _, _ in server.asked)
    return Reply(generation.fault, list(generation.take()), n_asked)


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TokensCommitted))


def stopped_after_sat(session: ServerSession) -> list[Event]:
    """The events of a reply that was stopped after its third word."""
    cancellation = Cancellation()
    generation = session.begin(ASKED, cancellation)
    events: list[Event] = []
    while not text_of(events).endswith("sat"):
        session.step()
        events += generation.take()
    cancellation.cancel()
    session.step()
    return [*events, *generation.take()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_server_is_recognised_and_its_reply_is_whole(kind: Kind) -> None:
    with serving(kind) as server:
        session = opened(server)
        session.close()
        reply = reply_of(server)
    assert session.facts.program == kind
    assert reply.finished.text == reply.text == WHOLE
    assert (reply.finished.stats.n_emitted, reply.finished.stats.n_prompt) == (7, 9)


@pytest.mark.parametrize("kind", ["OpenAI", "vLLM", "SGLang"])
def test_what_a_server_does_not_count_is_not_known(kind: Kind) -> None:
    with serving(kind) as server:
        server.numbers["usage"] = None
        stats = reply_of(server).finished.stats
    assert (stats.n_prompt, stats.n_reused, stats.n_emitted) == (None, None, None)
    assert (stats + stats).n_emitted is None
    assert stats.tokens_per_round is None


def test_counts_of_rounds_are_those_of_the_server() -> None:
    with serving("llama-server") as server:
        reply = reply_of(server)
    finished = reply.finished

    assert PromptProgress(6, 9, 4) in reply.events
    tokens = [each.tokens[0] for each in reply.events if isinstance(each, TokensCommitted)]
    assert [each.kind for each in tokens[:5]] == ["plain", "draft", "draft", "correction", "plain"]
    assert [each.source for each in tokens[:5]] == [None, *["llama-server"] * 3, None]
    rounds = [each for each in reply.events if isinstance(each, RoundFinished)]
    assert [each.verdicts for each in rounds[:3]] == [(), (True, True, False), ()]
    assert [each.n_emitted for each in rounds] == [1, 3, 1, 1, 1]
    assert [each.elapsed_s for each in rounds[:3]] == pytest.approx([0.02, 0.02, 0.06])
    used = [each.n_used for each in reply.events if isinstance(each, CacheChanged)]
    assert (used[0], used[-1]) == (9, 16)
    stats = finished.stats
    assert (stats.n_drafted, stats.n_accepted, stats.n_examined) == (3, 2, 3)
    assert (stats.n_rounds, stats.decode_tps) == (5, 50.0)
    assert finished.token_ids == (0, 1, 2, 3, 4, 5, 6)
    assert finished.reason is FinishReason.STOP_STRING


@pytest.mark.parametrize(
    ("numbers", "reason", "n_ids"),
    [
        ({"stop_type": "eos"}, FinishReason.END, 6),
        ({"stop_type": "limit"}, FinishReason.LENGTH, 7),
        ({"stop_type": "limit", "truncated": True}, FinishReason.CONTEXT, 7),
        ({}, FinishReason.STOP_TOKEN, 2),
    ],
)
def test_the_end_of_a_reply_is_the_one_that_llama_server_reports(
    numbers: dict[str, object], reason: FinishReason, n_ids: int
) -> None:
    stops = SamplingSettings(stop_tokens=() if numbers else (2,))
    with serving("llama-server") as server:
        server.numbers = numbers
        session = opened(server)
        generation = ended(session, replace(ASKED, sampling=stops))
        session.close()
    *_, finished = generation.take()
    assert isinstance(finished, Finished)
    assert (finished.reason, len(finished.token_ids)) == (reason, n_ids)


@pytest.mark.parametrize(
    ("kind", "drafts", "name", "n_tokens"),
    [
        ("llama-server", True, "llama-server", 5),
        ("llama-server", False, "off", 5),
        ("OpenAI", False, "drafts unknown", None),
    ],
)
def test_what_a_server_has_is_reported_and_its_drafts_stay_its_own(
    kind: Kind, drafts: bool, name: str, n_tokens: int | None
) -> None:
    events: list[Event] = []
    with serving(kind) as server:
        server.drafts = drafts
        sampling = SamplingSettings(top_k=4, min_p=0.5, repetition_penalty=1.5)
        configuration = Configuration.at_server(server.url, None, sampling)
        session = ServerSession(configuration, FAST, events.append)
        loaded = session.loaded
        assert session.count_tokens("Hello") == n_tokens
        session.watch()
        session.set_speculation(SpeculationSettings())
        server.misdeed = "no tokenizer"
        assert session.count_tokens("Hello") is None
        session.close()
    changed = [each for each in events if isinstance(each, SpeculationChanged)]
    assert [(each.predictor, bool(each.note)) for each in changed] == [(name, False), (name, True)]
    assert (loaded.model_name, loaded.has_chat_template, loaded.can_crop) == ("tiny", True, True)
    found = (loaded.file_type, loaded.n_vocab, loaded.n_ctx, loaded.n_ctx_train)
    assert found == (("Q4_1", 100, 1024, 2048) if n_tokens else ("", None, None, None))
    unused = [note for note in loaded.notes if "top_k, min_p, repetition_penalty" in note]
    assert len(unused) == (kind == "OpenAI")


BROKEN: tuple[tuple[Kind, Misdeed, str], ...] = (
    ("OpenAI", "comments", "no data"),
    *(
        (kind, misdeed, message)
        for kind in ("OpenAI", "llama-server")
        for misdeed, message in (
            ("cut", "complete"),
            ("broken json", "invalid JSON"),
            ("ten megabytes", "one event"),
            ("endless line", "one event"),
            ("endless text", "without ending"),
            ("silence", "1 s"),
            ("gives up", "out of memory"),
        )
    ),
)
"""Misdeeds by both protocols, and a word of each message."""


@pytest.mark.parametrize(("kind", "misdeed", "message"), BROKEN)
def test_a_reply_that_breaks_is_reported_and_what_came_is_there(
    kind: Kind, misdeed: Misdeed, message: str
) -> None:
    with serving(kind) as server:
        reply = reply_of(server, misdeed, replace(FAST, silence_s=1.0))
        assert message in str(reply.fault)
        assert reply.text.startswith("The cat sat")
        assert reply.n_asked == 1, "nothing is asked again once a token came"
        server.misdeed = "none"
        assert reply_of(server).text == WHOLE


@pytest.mark.parametrize("kind", ["OpenAI", "llama-server"])
def test_after_an_error_no_connection_stays_open(kind: Kind) -> None:
    with serving(kind) as server:
        gc.disable()  # the error holds the frames that read the stream
        try:
            assert reply_of(server, "gives up").fault is not None
            ports = [each.raddr.port for each in Process().net_connections() if each.raddr]
        finally:
            gc.enable()
        assert int(server.url.rpartition(":")[2]) not in ports


@pytest.mark.parametrize("misdeed", [*DRIPS, "slow"])
def test_bytes_that_bring_nothing_are_no_sign_of_life(
    server: LanguageServer, misdeed: Misdeed
) -> None:
    reply = reply_of(server, misdeed, replace(HASTY, answer_s=20.0))
    assert isinstance(reply.fault, ServerSilentError)
    assert reply.n_asked == 1, "what took too long once takes as long again"
    if misdeed in DRIPS:
        with pytest.raises(ServerSilentError):
            opened(server, limits=HASTY)


def test_events_without_end_that_bring_nothing_are_given_up_before_they_cost_minutes(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_IDLE_EVENTS", 20)
    assert "21 events" in str(reply_of(server, "empty objects").fault)


def test_a_busy_server_is_waited_for_with_a_word(server: LanguageServer) -> None:
    server.misdeed = "busy"
    reported: list[Event] = []
    with pytest.raises(ServerBusyError, match="Loading model"):
        ServerSession(
            Configuration.at_server(server.url), replace(FAST, loading_s=0.1), reported.append
        )
    texts = [event.text for event in reported if isinstance(event, Waiting)]
    assert "Loading model" in texts[0]
    assert texts[-1] == "", "nothing is waited for any more"


COUNTS = ("tokens_predicted", "draft_n", "draft_n_accepted", "prompt_n", "cache_n", "prompt_tokens",
          "completion_tokens", "cached_tokens", "prompt_eval_count", "eval_count")  # fmt: skip
TIMES = ("prompt_ms", "predicted_ms", "predicted_per_second", "prompt_eval_duration",
         "eval_duration")  # fmt: skip


@pytest.mark.parametrize("value", [2**31, 2**64 - 1, 1e308, -(2**63), True, "9", []])
@pytest.mark.parametrize("kind", ["llama-server", "OpenAI"])
def test_no_number_of_a_server_makes_a_list_or_a_figure_that_cannot_be(
    kind: Kind, value: object
) -> None:
    with serving(kind) as server:
        server.numbers = dict.fromkeys((*COUNTS, *TIMES), value)
        reply = reply_of(server)
    assert reply.finished.text == WHOLE
    stats = asdict(reply.finished.stats)
    json.dumps(stats, allow_nan=False)
    assert all(each >= 0 for each in stats.values() if isinstance(each, int | float))
    assert (stats["n_emitted"] or 0) <= 50
    rounds = [each for each in reply.events if isinstance(each, RoundFinished)]
    assert all(len(each.verdicts) <= MAX_DRAFT for each in rounds)


def test_an_invalid_token_id_becomes_none_and_the_text_stays() -> None:
    with serving("llama-server") as server:
        for token in (-1, 2**31, 2**64 - 1, True, 1.5, "x", None):
            server.numbers = {"tokens": [token]}
            finished = reply_of(server).finished
            assert (finished.text, finished.token_ids) == (WHOLE, ())


def test_a_complete_reply_without_all_ids_needs_no_tokenizer() -> None:
    with serving("llama-server") as server:
        server.numbers = {"tokens_predicted": 20}  # more than the ids that are sent
        reply = reply_of(server, "no tokenizer")
        assert "/tokenize" in [path for path, _, _ in server.asked]
    assert reply.fault is None
    assert (reply.finished.text, reply.finished.token_ids) == (WHOLE, ())


def test_a_stream_that_is_done_without_a_reason_is_complete(server: LanguageServer) -> None:
    finished = reply_of(server, "no reason").finished
    assert (finished.text, finished.reason) == (WHOLE, FinishReason.END)


@pytest.mark.parametrize("kind", ["OpenAI", "vLLM"])
def test_a_count_that_comes_beside_the_end_counts(kind: Kind) -> None:
    with serving(kind) as server:
        stats = reply_of(server, "usage beside choices").finished.stats
    assert (stats.n_emitted, stats.n_prompt) == (7, 9)


def test_a_speed_and_rounds_that_a_server_does_not_report_are_not_made_up(
    server: LanguageServer,
) -> None:
    stats = reply_of(server).finished.stats
    assert stats.n_emitted == 7
    assert (stats.decode_tps or 0.0) < 7 / 0.05, "it came at once"
    assert (stats.n_rounds, stats.tokens_per_round) == (0, None)


def test_without_drafts_each_token_is_a_round_wherever_it_is_stopped() -> None:
    with serving("llama-server") as server:
        session = opened(server)
        server.numbers = {"draft_n": 0, "draft_n_accepted": 0}
        server.misdeed = "silence"
        events = stopped_after_sat(session)
        session.close()
    stopped = events[-1]
    assert isinstance(stopped, Finished)
    assert (stopped.stats.n_emitted, stopped.stats.tokens_per_round) == (3, 1.0)
    assert sum(event.n_emitted for event in events if isinstance(event, RoundFinished)) == 3


def test_a_server_that_is_killed_under_load_and_comes_back() -> None:
    limits = replace(FAST, pauses_s=(0.05,) * 40)
    with serving() as server:
        session = opened(server, limits=limits)
        server.misdeed = "comments"
        begun = session.begin(ASKED, Cancellation())
        reported: list[Event] = []
        while not text_of(reported).endswith("sat"):
            session.step()
            reported += begun.take()
        server.misdeed = "slow"
        waiting = [session.begin(ASKED, Cancellation()) for _ in range(3)]
        while sum(path in REPLIES for path, _, _ in server.asked) < 4:
            session.step()
        port = int(server.url.rpartition(":")[2])
    with serving(port=port):
        while session.step():
            pass
    session.close()
    assert begun.fault is not None
    assert text_of([*reported, *begun.take()]) == "The cat sat"
    assert [each.fault for each in waiting] == [None] * 3
    assert [text_of(list(each.take())) for each in waiting] == [WHOLE] * 3


@pytest.mark.parametrize("misdeed", ["busy once", "reset once"])
def test_before_the_first_token_it_is_asked_again(server: LanguageServer, misdeed: Misdeed) -> None:
    reply = reply_of(server, misdeed)
    assert (reply.fault, reply.text) == (None, WHOLE)


def test_nobody_at_the_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServerUnreachableError):
        ServerSession(Configuration.at_server(url), FAST)


def test_something_else_at_the_address(server: LanguageServer) -> None:
    server.misdeed = "no json"
    with pytest.raises(ServerError, match="language model server"):
        opened(server)
    server.misdeed = "packed"
    with pytest.raises(ServerError, match="compresses"):
        opened(server)


@pytest.mark.parametrize("address", ["http://[", "http://[1:2", "//[", "http://xn--a"])
def test_a_redirect_to_an_invalid_address_is_reported(server: LanguageServer, address: str) -> None:
    server.misdeed, server.elsewhere = "no address", address
    with pytest.raises(ServerError):
        opened(server)
    server.misdeed = "none"
    assert isinstance(reply_of(server, "no address").fault, ServerError)


def test_a_model_that_is_not_there_and_one_that_vanished(server: LanguageServer) -> None:
    with pytest.raises(ServerError, match=r"'large'.*'tiny'"):
        opened(server, "large")
    session = opened(server, "tin")
    server.misdeed = "gone model"
    assert "not found" in str(ended(session).fault)
    session.close()


def test_a_prompt_that_is_too_long_is_a_full_context(server: LanguageServer) -> None:
    assert isinstance(reply_of(server, "too long").fault, ContextFullError)


def test_a_server_that_comes_back_with_another_model_is_reported() -> None:
    with serving() as server:
        session = opened(server)
        port = int(server.url.rpartition(":")[2])
    assert isinstance(ended(session).fault, ServerUnreachableError)
    with serving(port=port) as back:
        back.model = "another"
        assert "another" in str(ended(session).fault)
        back.model = "tiny"
        assert text_of(list(ended(session).take())) == WHOLE
    session.close()


def test_a_stop_reaches_the_server_and_keeps_what_came(server: LanguageServer) -> None:
    session = opened(server)
    server.misdeed = "comments"
    finished = stopped_after_sat(session)[-1]
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.CANCELLED
    assert finished.text == "The cat sat"
    wait_for_cut(server)
    session.close()


def test_a_stop_is_obeyed_while_nothing_comes(server: LanguageServer) -> None:
    session = opened(server)
    server.misdeed = "slow"
    cancellation = Cancellation()
    generation = session.begin(GenerationRequest(raw_prompt="Hello"), cancellation)
    session.step()
    assert not generation.is_over
    cancellation.cancel()
    session.step()
    [finished] = generation.take()
    assert isinstance(finished, Finished)
    assert finished.reason is FinishReason.CANCELLED
    left = Cancellation()
    session.begin(ASKED, left)
    session.close()
    assert left.is_cancelled


# --- keys ---


def test_the_key_goes_with_every_request(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert reply_of(server).text == WHOLE
    assert all(headers["authorization"] == f"Bearer {KEY}" for _, headers, _ in server.asked)


def test_an_address_that_the_user_did_not_name_gets_no_key_of_the_environment(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    session = ServerSession(Configuration.at_server(server.url), FAST)
    assert not session.loaded.configuration.is_server_trusted
    assert text_of(list(ended(session).take())) == WHOLE
    session.close()
    assert server.asked
    assert KEY not in repr(server.asked)


@pytest.mark.parametrize("sent", [None, "sk-wrong"])
def test_a_wrong_key_is_reported_with_the_place_for_the_right_one(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch, sent: str | None
) -> None:
    server.key = KEY
    if sent is not None:
        monkeypatch.setenv(KEY_VARIABLE, sent)
    with pytest.raises(ServerError, match=KEY_VARIABLE) as caught:
        opened(server)
    assert "sk-wrong" not in str(caught.value)


def test_no_key_goes_to_another_host(
    server: LanguageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with serving() as thief:
        server.elsewhere = thief.url
        server.misdeed = "elsewhere"
        with pytest.raises(ServerError, match="other host"):
            opened(server)
        server.misdeed = "none"
        assert "other host" in str(reply_of(server, "elsewhere").fault)
        assert thief.asked == []


def test_no_key_is_in_a_message_or_a_log(
    server: LanguageServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server.misdeed = "echoes key"
    with caplog.at_level(logging.INFO):
        try:
            opened(server)
        except EngineError as error:
            message = str(error)
    assert "[key]" in message
    shown = capfd.readouterr()
    assert KEY not in message + caplog.text + shown.out + shown.err


def test_a_server_that_has_the_key_in_its_version_or_its_model_does_not_show_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with serving("llama-server") as server:
        server.key, server.model, server.misdeed = KEY, f"tiny-{KEY}", "names key"
        session = opened(server)
        session.close()
    assert KEY not in repr((session.facts, session.loaded))
    assert "[key]" in session.loaded.notes[0]


def test_a_key_that_is_a_word_leaves_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "tiny")
    with serving("Ollama") as server:
        session = opened(server, "tiny")
        server.misdeed = "gone model"
        fault = ended(session).fault
        session.close()
    assert session.facts.model == "tiny"
    assert "serves tiny" in session.loaded.notes[0]
    assert "model tiny not found" in str(fault)


def test_the_keyring_has_the_key_of_one_address(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = {("kvchat", "https://cellar:443"): " k "}
    keyring, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    monkeypatch.setattr(keyring, "get_password", lambda *of: saved.get(of), raising=False)
    monkeypatch.setattr(errors, "KeyringError", OSError, raising=False)
    monkeypatch.setitem(sys.modules, "keyring", keyring)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    assert key_of("https://Cellar/v1") == "k"
    assert key_of("https://cellar:8443") is None
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    assert key_of("https://cellar") == "k"
    assert key_of("https://cellar", is_trusted=True) == KEY


def test_addresses_with_secrets_are_refused() -> None:
    for text in ("http://me:pass@host", "http://host?key=1", "ftp://host", "http://", "http://h\n"):
        with pytest.raises(ServerError):
            parse_server(f"{text} x" if text.endswith("\n") else text)
    assert parse_server("Cellar:8080/v1/") == "http://cellar:8080"


def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    with (
        serving(certificate=own_certificate(tmp_path)) as server,
        pytest.raises(ServerError, match="SSL_CERT_FILE"),
    ):
        opened(server)


def test_a_certificate_that_the_user_trusts_is_good_for_its_own_name_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = own_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    with serving(certificate=pem) as server:
        assert reply_of(server).text == WHOLE
    with (
        serving(certificate=own_certificate(tmp_path, "DNS:elsewhere")) as server,
        pytest.raises(ServerError, match="certificate"),
    ):
        opened(server)


def test_a_server_without_tls_at_an_https_address(server: LanguageServer) -> None:
    server.url = server.url.replace("http:", "https:")
    with pytest.raises(ServerError, match="http://"):
        opened(server)
