"""Counters and gauges of a running engine, computed from its events.

Pass each event to `Metrics.observe`; `prometheus()` returns the text for a scrape (exposition
format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    GenerationStats,
    Loaded,
    ThreadsChanged,
    TiersChanged,
    WorkerStopped,
)

PREFIX = "kvchat_"


class MetricKind(StrEnum):
    """The type of a Prometheus metric."""

    COUNTER = "counter"
    """Only increases, until the engine restarts."""
    GAUGE = "gauge"
    """The current value, or that of the last reply."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Name, type, help text and label names of a metric."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", MetricKind.GAUGE, text, labels)


REPLIES = _counter("replies", "Finished replies, by finish reason.", "reason")
FAILURES = _counter("failures", "Failed requests and loads.")
STOPS = _counter("engine_stops", "Crashes of the engine process.")
PROMPT_TOKENS = _counter("prompt_tokens", "Prompt tokens.")
REUSED_TOKENS = _counter("reused_tokens", "Prompt tokens reused from a cache.")
PROMPT_SECONDS = _counter("prompt_seconds", "Time spent on prefill.")
TOKENS = _counter("tokens", "Generated tokens.")
ROUNDS = _counter("rounds", "Forward passes.")
DRAFTED = _counter("drafted_tokens", "Drafted tokens.", "source")
VERIFIED = _counter("verified_tokens", "Drafted tokens that the target evaluated.", "source")
EXAMINED = _counter(
    "examined_tokens", "Verified tokens up to and including the first rejected one.", "source"
)
ACCEPTED = _counter("accepted_tokens", "Verified tokens that were accepted.", "source")
NEAR_TIES = _counter("near_ties", "Positions whose top two tokens are nearly tied.")
DECODE_SECONDS = _counter("decode_seconds", "Time spent on decode.")
CACHE_COUNTS = _counter("cache", "Cache events: hits, saves, restores, evictions.", "event")

ACCEPTANCE = _gauge("acceptance_rate", "Accepted tokens / verified tokens, all replies.")
PLAIN_STEP = _gauge("plain_step_seconds", "Time of one decode step without drafts.")
CELLS_USED = _gauge("context_used_cells", "Used cells of the context.")
CELLS = _gauge("context_cells", "Size of the context in cells.")
KV_BYTES = _gauge("kv_cache_bytes", "Allocated bytes of the KV cache.")
BUFFER_BYTES = _gauge("buffer_bytes", "Bytes of each buffer.", "owner", "kind", "device")
LOAD_SECONDS = _gauge("load_seconds", "Time to load the model.")
THREADS = _gauge("threads", "Compute threads.", "phase")
TIER_BYTES = _gauge("tier_bytes", "Bytes of saved states.", "tier")
TIER_TOKENS = _gauge("tier_tokens", "Tokens of saved states.", "tier")
FIRST_TOKEN = _gauge("first_token_seconds", "Time to first token of the last reply.")
DECODE_TPS = _gauge("decode_tokens_per_second", "Decode speed of the last reply.")
SPEEDUP = _gauge("speedup_ratio", "Speedup over decoding without drafts, last reply.")
SAVED = _gauge("saved_seconds", "Time saved by drafts in the last reply; negative: a loss.")

METRICS = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
"""All metrics in the order of the exposition."""

Labels = tuple[str, ...]
Sample = tuple[Metric, Labels, float | None]


class Metrics:
    """Metric values from the observed events; counters without labels start at 0.

    Counters of replies are sums of `Finished.stats`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all metrics."""
        self._of_engine: dict[tuple[Metric, Labels], float] = {}
        self._stats = GenerationStats()
        self._last = GenerationStats()
        self._n_prompt = self._n_reused = 0

    def observe(self, event: Event) -> None:
        """Update the metrics from an event of a session, a worker or a client."""
        match event:
            case Finished(reason=reason, stats=stats):
                self._add(REPLIES, (reason,))
                self._stats, self._last = self._stats + stats, stats
                self._n_prompt += stats.n_prompt or 0
                self._n_reused += stats.n_reused or 0
            case Failed():
                self._add(FAILURES)
            case WorkerStopped():
                self._add(STOPS)
            case _:
                for metric, labels, value in _samples_of(event):
                    self._of_engine[metric, labels] = value or 0.0

    def _add(self, metric: Metric, labels: Labels = ()) -> None:
        known = self._of_engine.get((metric, labels), 0.0)
        self._of_engine[metric, labels] = known + 1

    def _values(self) -> dict[Metric, dict[Labels, float]]:
        values: dict[Metric, dict[Labels, float]] = {
            metric: {(): 0.0} if metric.kind is MetricKind.COUNTER and not metric.labels else {}
            for metric in METRICS
        }
        of_engine = ((metric, labels, value) for (metric, labels), value in self._of_engine.items())
        for metric, labels, value in (*of_engine, *self._of_replies()):
            if value is not None:
                values[metric][labels] = value
        return values

    def _of_replies(self) -> Iterator[Sample]:
        stats, last = self._stats, self._last
        yield PROMPT_TOKENS, (), self._n_prompt
        yield REUSED_TOKENS, (), self._n_reused
        yield PROMPT_SECONDS, (), stats.prefill_s
        yield TOKENS, (), stats.n_emitted or 0
        yield ROUNDS, (), stats.n_rounds
        for source, counts in stats.by_source.items():
            yield DRAFTED, (source,), counts.n_drafted
            yield VERIFIED, (source,), counts.n_verified
            yield EXAMINED, (source,), counts.n_examined
            yield ACCEPTED, (source,), counts.n_accepted
        yield NEAR_TIES, (), stats.n_near_ties
        yield DECODE_SECONDS, (), stats.decode_s
        yield ACCEPTANCE, (), stats.acceptance_rate
        yield PLAIN_STEP, (), last.plain_step_s
        yield FIRST_TOKEN, (), last.first_token_s
        yield DECODE_TPS, (), last.decode_tps
        yield SPEEDUP, (), last.speedup
        yield SAVED, (), last.saved_s

    def value(self, metric: Metric, **labels: str) -> float | None:
        """Value of a metric with these labels; None if no event has set it."""
        return self._values()[metric].get(tuple(labels[name] for name in metric.labels))

    def total(self, metric: Metric) -> float:
        """Sum of a metric over its labels."""
        return sum(self._values()[metric].values())

    def samples(self) -> Iterator[tuple[Metric, Mapping[str, str], float]]:
        """Iterate over all values with their metric and labels."""
        for metric, values in self._values().items():
            for labels, value in values.items():
                yield metric, dict(zip(metric.labels, labels, strict=True)), value

    def summary(self) -> str:
        """Text of four lines about the generated tokens and the effect of drafts."""
        stats, speedup = self._stats, self._last.speedup
        rate, per_round = stats.acceptance_rate, stats.tokens_per_round
        lines = (
            f"tokens      {stats.n_emitted or 0} in {stats.n_rounds} rounds"
            + ("" if per_round is None else f", {per_round:.2f} per round"),
            f"verified    {stats.n_verified}: {stats.n_accepted} accepted, "
            f"{stats.n_refuted} refuted" + ("" if rate is None else f" (acceptance {rate:.0%})"),
            f"time        {stats.decode_s:.3f} s decoding",
            "speedup     "
            + ("unknown: no plain step was measured" if speedup is None else f"{speedup:.2f}"),
        )
        return "\n".join(lines)

    def prometheus(self) -> str:
        """The metrics in Prometheus text format, ending with a newline."""
        lines: list[str] = []
        previous: Metric | None = None
        for metric, labels, value in self.samples():
            if metric is not previous:
                lines.append(f"# HELP {metric.name} {metric.help}")
                lines.append(f"# TYPE {metric.name} {metric.kind}")
                previous = metric
            lines.append(f"{metric.name}{_label_text(labels)} {_number(value)}")
        return "\n".join((*lines, ""))


def _samples_of(event: Event) -> Iterator[Sample]:
    """Values that an event of the engine sets."""
    match event:
        case Loaded():
            yield from _loaded(event)
        case CacheChanged(n_used=n_used, n_cells=n_cells, kv_bytes=kv_bytes):
            yield CELLS_USED, (), n_used
            yield CELLS, (), n_cells
            if kv_bytes is not None:
                yield KV_BYTES, (), kv_bytes
        case TiersChanged(report=report):
            for tier in report.tiers:
                yield TIER_BYTES, (tier.name,), tier.nbytes
                yield TIER_TOKENS, (tier.name,), tier.n_tokens
            for name, value in asdict(report.counts).items():
                if name.startswith("n_"):
                    yield CACHE_COUNTS, (name.removeprefix("n_"),), value
        case ThreadsChanged(n_decode=n_decode, n_prefill=n_prefill):
            yield from _threads(n_decode, n_prefill)
        case _:
            return


def _loaded(event: Loaded) -> Iterator[Sample]:
    yield LOAD_SECONDS, (), event.elapsed_s
    for buffer in event.buffers:
        yield BUFFER_BYTES, (buffer.owner, buffer.kind, buffer.device), buffer.nbytes
    if event.n_threads is not None:
        yield from _threads(*event.n_threads)


def _threads(n_decode: int, n_prefill: int) -> Iterator[Sample]:
    yield THREADS, ("decode",), n_decode
    yield THREADS, ("prefill",), n_prefill


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else repr(float(value))


def _label_text(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
