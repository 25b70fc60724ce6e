"""Lines for the panels about a server's slots and gauges, and about missing figures.

Names are those of llama-server 0c1e570, vLLM 0.32.0 (`vllm/v1/metrics/loggers.py`; 0.6 to 0.9
called the use of the cache `gpu_cache_usage_perc`) and SGLang 0.5.23
(`observability/metrics_collector.py`).
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from engine.backends.server.facts import Program, ServerFacts, slots_of
from engine.backends.server.http import Http
from engine.backends.server.served_reply import bound_number, count_of
from engine.errors import ServerError
from engine.events import ServerFigure, ServerFigures

SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)")
MAX_SAMPLES = 20_000
MAX_VALUE = 1e15
"""Of a counter: its digits fit a line."""

KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
HIT_RATE = ("sglang:cache_hit_rate",)
ACCEPT_LENGTH = ("sglang:spec_accept_length",)
RUNNING = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
)
WAITING = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
)

NOT_REPORTED: Mapping[Program, tuple[ServerFigure, ...]] = {
    "llama-server": (ServerFigure("memory", "llama-server does not report its memory"),),
    "vLLM": (
        ServerFigure("speculation", "vLLM counts drafts of all users together"),
        ServerFigure("memory", "vLLM does not report its memory"),
    ),
    "SGLang": (
        ServerFigure("speculation", "SGLang counts drafts of all users together"),
        ServerFigure("memory", "SGLang does not report its memory"),
    ),
    "Ollama": (
        ServerFigure("speculation", "Ollama does not report drafts"),
        ServerFigure("cache", "Ollama does not report reused tokens"),
        ServerFigure("memory", "for Ollama's memory, run `ollama ps`"),
    ),
    "OpenAI": (
        ServerFigure("speculation", "this server does not report drafts"),
        ServerFigure("throughput", "speed as measured by kvchat, including the network"),
        ServerFigure("memory", "this server does not report its memory"),
    ),
}
"""What each program cannot be asked for."""


def read_samples(text: str) -> dict[str, float]:
    """Parse a Prometheus text (exposition format 0.0.4) to values by name, summed over labels."""
    found: dict[str, float] = {}
    for number, line in enumerate(text.splitlines()):
        if number > MAX_SAMPLES:
            break
        match = SAMPLE.match(line)
        if match is None or line.startswith("#"):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            total = found.get(match["name"], 0.0) + value
            found[match["name"]] = bound_number(total, MAX_VALUE)
    return found


@dataclass(slots=True)
class Counters:
    """Reads the slots and gauges of a server."""

    http: Http
    facts: ServerFacts
    is_busy: bool = False
    """Whether the server was making replies at the last request."""

    def figures(self) -> ServerFigures:
        """Request slots and gauges; return lines about them and about missing figures."""
        self.is_busy = False
        figures = [*self._of_slots(), *self._of_metrics()]
        has_speculation = any(figure.panel == "speculation" for figure in figures)
        missing = NOT_REPORTED[self.facts.program]
        if self.facts.program in ("vLLM", "SGLang") and not self.facts.has_metrics:
            figures.append(ServerFigure("cache", "/metrics is off"))
        if self.facts.program == "llama-server" and self.facts.speculates is False:
            figures.append(ServerFigure("speculation", "started without --spec-type: no drafts"))
        reported = (each for each in missing if each.panel != "speculation" or not has_speculation)
        return ServerFigures((*figures, *reported))

    def _of_slots(self) -> Iterator[ServerFigure]:
        if not self.facts.has_slots:
            return
        try:
            slots = slots_of(self.http)
        except ServerError:
            return  # the replies report the error
        n_busy = sum(bool(slot.get("is_processing")) for slot in slots)
        held = [n for slot in slots if (n := count_of(slot, "n_prompt_tokens"))]
        self.is_busy |= n_busy > 0
        yield ServerFigure(
            "cache",
            f"slots: {n_busy} of {len(slots)} busy, {sum(held):,} tokens in {len(held)} slots",
        )

    def _of_metrics(self) -> Iterator[ServerFigure]:
        if not self.facts.has_metrics:
            return
        try:
            now = read_samples(self.http.get("/metrics").decode("utf-8", "replace"))
        except ServerError:
            return
        self.is_busy |= bool(_first(now, RUNNING) or _first(now, WAITING))
        yield from _gauges(now)


def _gauges(now: Mapping[str, float]) -> Iterator[ServerFigure]:
    running, waiting = _first(now, RUNNING), _first(now, WAITING)
    if running is not None:
        queue = f", {waiting:.0f} waiting" if waiting else ""
        replies = "reply" if round(running) == 1 else "replies"
        yield ServerFigure("throughput", f"server: {running:.0f} {replies} running{queue}")
    if (used := _first(now, KV_USE)) is not None:
        yield ServerFigure("cache", f"server: {min(used, 1.0):.0%} of the KV cache in use")
    if (rate := _first(now, HIT_RATE)) is not None:
        yield ServerFigure("cache", f"server: prefix cache hit rate {min(rate, 1.0):.0%}")
    if length := _first(now, ACCEPT_LENGTH):
        yield ServerFigure("speculation", f"server: {length:.2f} tokens per round, all users")


def _first(now: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((now[name] for name in names if name in now), None)
