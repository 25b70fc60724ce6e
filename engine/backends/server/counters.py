"""Figures for the panels from a server's slots and metrics, and which figures it does not report.

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
from engine.errors import ServerError
from engine.events import PanelName, ServerFigure, ServerFigures

SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})?\s+(?P<value>\S+)")
MAX_SAMPLES = 20_000
MAX_VALUE = 1e15
"""Limit of a value, so that its digits fit on a line."""

KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
HIT_RATE = ("sglang:cache_hit_rate",)
ACCEPT_LENGTH = ("sglang:spec_accept_length",)
RUNNING = ("vllm:num_requests_running", "sglang:num_running_reqs", "llamacpp:requests_processing")
WAITING = ("vllm:num_requests_waiting", "sglang:num_queue_reqs", "llamacpp:requests_deferred")


NOT_REPORTED: Mapping[Program, Mapping[PanelName, str]] = {
    "llama-server": {"memory": "llama-server does not report its memory"},
    "vLLM": {
        "speculation": "vLLM counts drafts of all users together",
        "memory": "vLLM does not report its memory",
    },
    "SGLang": {
        "speculation": "SGLang counts drafts of all users together",
        "memory": "SGLang does not report its memory",
    },
    "Ollama": {
        "speculation": "Ollama does not report drafts",
        "cache": "Ollama does not report reused tokens",
        "memory": "for Ollama's memory, run `ollama ps`",
    },
    "OpenAI": {
        "speculation": "this server does not report drafts",
        "throughput": "speed as measured by kvchat, including the network",
        "memory": "this server does not report its memory",
    },
}
"""Text about the figures that each program does not report, by panel."""


def read_samples(text: str) -> dict[str, float]:
    """Parse a Prometheus text (exposition format 0.0.4) to values by name, summed over labels."""
    found: dict[str, float] = {}
    for line in text.splitlines()[:MAX_SAMPLES]:
        match = SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if math.isfinite(value):
            total = found.get(match["name"], 0.0) + value
            found[match["name"]] = min(max(total, 0.0), MAX_VALUE)
    return found


@dataclass(slots=True)
class Counters:
    """Reads the slots and metrics of a server."""

    http: Http
    facts: ServerFacts
    is_busy: bool = False
    """Whether the server was making replies at the last request."""

    def figures(self) -> ServerFigures:
        """Request slots and metrics; return figures, and texts about missing ones."""
        self.is_busy = False
        figures, facts = [*self._of_slots(), *self._of_metrics()], self.facts
        missing = dict(NOT_REPORTED[facts.program])
        if any(figure.panel == "speculation" for figure in figures):
            missing.pop("speculation", None)
        if facts.program in ("vLLM", "SGLang") and not facts.has_metrics:
            missing["cache"] = "/metrics is off"
        if facts.program == "llama-server" and facts.speculates is False:
            missing["speculation"] = "no drafts: the server was started without --spec-type"
        return ServerFigures((*figures, *(ServerFigure(*each) for each in missing.items())))

    def _of_slots(self) -> Iterator[ServerFigure]:
        if not self.facts.has_slots:
            return
        try:
            slots = slots_of(self.http)
        except ServerError:
            return  # the replies report the error
        n_busy = sum(bool(slot.get("is_processing")) for slot in slots)
        self.is_busy |= n_busy > 0
        yield ServerFigure("cache", f"slots: {n_busy} of {len(slots)} busy")

    def _of_metrics(self) -> Iterator[ServerFigure]:
        if not self.facts.has_metrics:
            return
        try:
            now = read_samples(self.http.get("/metrics").decode("utf-8", "replace"))
        except ServerError:
            return
        running, waiting = _first(now, RUNNING), _first(now, WAITING)
        self.is_busy |= bool(running or waiting)
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
