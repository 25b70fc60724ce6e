"""Checks of a server: its program, the figures that it reports, and a short reply."""

from collections.abc import Callable, Iterator

from app import format as fmt
from app.doctor import Check
from engine.backends.server.facts import ServerFacts
from engine.backends.server.http import TimeLimits
from engine.backends.server.session import ServerSession
from engine.configuration import Configuration
from engine.errors import EngineError
from engine.events import Event, Finished
from engine.requests import Cancellation, GenerationRequest, Message
from engine.servers import KEY_VARIABLE

TRIAL_TOKENS = 8
TRIAL = GenerationRequest(messages=(Message("user", "Hello"),), max_tokens=TRIAL_TOKENS, seed=1)
LIMITS = TimeLimits(first_s=120.0, loading_s=30.0, pauses_s=(0.5,))


def check_server(
    url: str, model: str | None, emit: Callable[[Event], None] | None = None
) -> Iterator[Check]:
    """Check a server and the figures that it reports, and request a short reply."""
    try:
        session = ServerSession(Configuration.at_server(url, model, is_trusted=True), LIMITS, emit)
    except EngineError as error:
        yield Check("server", "fail", str(error), None)
        return
    try:
        facts = session.facts
        yield Check("server", "ok", f"{facts.program} {facts.version}".strip() + f" at {url}")
        yield _models(facts)
        yield _context(facts)
        yield from _counters(facts)
        yield _trial(session)
        for note in session.loaded.notes[1:]:
            yield Check("note", "note", note)
        for figure in session.look().figures:
            yield Check(figure.panel, "ok", figure.text)
    finally:
        session.close()


def _models(facts: ServerFacts) -> Check:
    others = f", one of {len(facts.models)} models" if len(facts.models) > 1 else ""
    kind = f" ({facts.file_type})" if facts.file_type else ""
    return Check("model", "ok", f"{facts.model}{kind}{others}")


def _context(facts: ServerFacts) -> Check:
    if facts.n_ctx is None:
        return Check("context", "note", "the server does not report its context length")
    trained = f" (training context {fmt.count(n)})" if (n := facts.n_ctx_train) else ""
    slots = f", {facts.n_slots} replies at once" if facts.n_slots else ""
    return Check("context", "ok", f"{fmt.count(facts.n_ctx)} tokens{trained}{slots}")


def _counters(facts: ServerFacts) -> Iterator[Check]:
    if facts.has_ids:
        text = (
            "the server reports token ids, template and tokenizer, so prompts are identical to "
            "those of a local model"
        )
        yield Check("tokens", "ok", text)
    else:
        text = (
            "the server does not return token ids, so kvchat sends plain chat messages; "
            "continuing a stopped reply regenerates it from the beginning"
        )
        yield Check("tokens", "note", text)
    if facts.program == "llama-server":
        text = "the server reports prompt, reused, drafted and accepted tokens, and times"
        yield Check("counts", "ok", text)
    if facts.has_metrics:
        yield Check("metrics", "ok", "the server reports counters at /metrics")
    else:
        todo = {
            "llama-server": "with --metrics",
            "SGLang": "with --enable-metrics",
            "vLLM": "without --disable-log-stats",
        }.get(facts.program)
        advice = None if todo is None else f"start the server {todo} to see figures for all users"
        yield Check("metrics", "note", "the server reports no counters", advice)
    if facts.program == "llama-server" and not facts.has_slots:
        text = "the server does not report its slots"
        yield Check("slots", "note", text, "start the server without --no-slots")


def _trial(session: ServerSession) -> Check:
    generation = session.begin(TRIAL, Cancellation())
    events: list[Event] = []
    try:
        while session.step():
            events += generation.take()
    except KeyboardInterrupt:
        generation.cancellation.cancel()
        raise
    events += generation.take()
    if generation.fault is not None:
        advice = f"check the API key in {KEY_VARIABLE}" if "key" in str(generation.fault) else None
        return Check("trial reply", "fail", str(generation.fault), advice)
    finished = next((event for event in reversed(events) if isinstance(event, Finished)), None)
    stats = None if finished is None else finished.stats
    if stats is None or stats.n_emitted == 0:
        return Check("trial reply", "note", "the reply contains no tokens")
    speed = "" if stats.decode_tps is None else f", {fmt.rate(stats.decode_tps)} tok/s"
    first = "" if (s := stats.first_token_s) is None else f", first token after {fmt.seconds(s)}"
    return Check("trial reply", "ok", f"{fmt.counted(stats.n_emitted, 'token')}{speed}{first}")
