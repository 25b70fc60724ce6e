"""Counters and gauges of a running engine, taken from its events alone.

A `Metrics` is handed each event as it comes; a scrape finds the text of `prometheus()` (exposition
format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from engine.cache.report import CacheReport
from engine.events import (
    CacheChanged,
    Event,
    Failed,
    Finished,
    Loaded,
    PromptReady,
    RoundFinished,
    ThreadsChanged,
    TiersChanged,
    TokensCommitted,
    WorkerStopped,
)

PREFIX = "kvchat_"
NOBODY = "none"
"""The source of a round without a guess."""


class MetricKind(StrEnum):
    """What a number means over time."""

    COUNTER = "counter"
    """Only rises, until the engine is started again."""
    GAUGE = "gauge"
    """The value of now, or of the last reply."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One named figure."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", MetricKind.COUNTER, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}", MetricKind.GAUGE, text, labels)


REPLIES = _counter("replies", "Replies that ended, by why.", "reason")
FAILURES = _counter("failures", "Requests and loads that failed.")
STOPS = _counter("engine_stops", "Times that the engine's process was gone.")
PROMPT_TOKENS = _counter("prompt_tokens", "Tokens of prompts.")
REUSED_TOKENS = _counter("reused_tokens", "Tokens of prompts that were not computed again.")
PROMPT_SECONDS = _counter("prompt_seconds", "Time of reading prompts.")
TOKENS = _counter("tokens", "Tokens of replies, by where each came from.", "kind")
ROUNDS = _counter("rounds", "Passes through the model, by who guessed.", "source")
DRAFTED = _counter("drafted_tokens", "Tokens that were guessed.", "source")
VERIFIED = _counter("verified_tokens", "Guessed tokens that were in a batch.", "source")
EXAMINED = _counter("examined_tokens", "Verified tokens up to the first miss.", "source")
ACCEPTED = _counter("accepted_tokens", "Verified tokens that became text.", "source")
NEAR_TIES = _counter("near_ties", "Rows whose best two tokens rounding may swap.")
DRAFT_SECONDS = _counter("draft_seconds", "Time of guessing.")
VERIFY_SECONDS = _counter("verify_seconds", "Time of passes through the model.")
DECODE_SECONDS = _counter("decode_seconds", "Time of whole rounds.")
CACHE_COUNTS = _counter("cache", "What became of prompts and kept states, by event.", "event")

ACCEPTANCE = _gauge("acceptance_rate", "Accepted tokens over verified ones, of all replies.")
DRAFT_LENGTH = _gauge("draft_length", "Tokens wanted for the next round.")
PLAIN_STEP = _gauge("plain_step_seconds", "Measured time of one plain step.")
CELLS_USED = _gauge("context_used_cells", "Cells of the context that hold a token.")
CELLS = _gauge("context_cells", "Cells of the context.")
KV_BYTES = _gauge("kv_cache_bytes", "Bytes of the KV cache as allocated.")
BUFFER_BYTES = _gauge("buffer_bytes", "Bytes of a buffer.", "owner", "kind", "device")
LOAD_SECONDS = _gauge("load_seconds", "Time of loading the model.")
THREADS = _gauge("threads", "Threads that compute.", "phase")
TIER_BYTES = _gauge("tier_bytes", "Bytes of kept states.", "tier")
TIER_TOKENS = _gauge("tier_tokens", "Tokens of kept states.", "tier")
FIRST_TOKEN = _gauge("first_token_seconds", "Until the first token of the last reply.")
DECODE_TPS = _gauge("decode_tokens_per_second", "Speed of the last reply behind its prompt.")
SPEEDUP = _gauge("speedup_ratio", "Time of plain decoding over the time taken, last reply.")
SAVED = _gauge("saved_seconds", "Time that drafts saved in the last reply; negative is a loss.")

METRICS = tuple(value for value in dict(globals()).values() if isinstance(value, Metric))
"""Every figure, in the order of the text."""

Labels = tuple[str, ...]
Change = tuple[Metric, float | None, Labels]
"""A figure, what is added to a counter or set of a gauge, and the labels' values."""


class Metrics:
    """The figures as far as events have told; a counter without labels begins at 0."""

    def __init__(self) -> None:
        self._values: dict[Metric, dict[Labels, float]] = {}
        self.reset()

    def reset(self) -> None:
        """Begin again."""
        self._values = {
            metric: {(): 0.0} if metric.kind is MetricKind.COUNTER and not metric.labels else {}
            for metric in METRICS
        }

    def observe(self, event: Event) -> None:
        """Take an event of a session, a worker or a client; those without a figure are ignored."""
        for metric, value, labels in _changes(event):
            values = self._values[metric]
            if value is None:
                values.pop(labels, None)
            elif metric.kind is MetricKind.COUNTER:
                values[labels] = values.get(labels, 0.0) + value
            else:
                values[labels] = value
        if isinstance(event, RoundFinished) and (verified := self.total(VERIFIED)):
            self._values[ACCEPTANCE][()] = self.total(ACCEPTED) / verified
        if isinstance(event, TiersChanged):
            # The engine counts these since its start: they are taken over, not added up.
            self._values[CACHE_COUNTS] = dict(_counted(event.report))

    def value(self, metric: Metric, **labels: str) -> float | None:
        """A figure under its labels; None before any event told it."""
        return self._values[metric].get(tuple(labels[name] for name in metric.labels))

    def total(self, metric: Metric) -> float:
        """The sum of a figure over its labels."""
        return sum(self._values[metric].values())

    def samples(self) -> Iterator[tuple[Metric, Mapping[str, str], float]]:
        """Every figure that there is, with its labels."""
        for metric, values in self._values.items():
            for labels, value in values.items():
                yield metric, dict(zip(metric.labels, labels, strict=True)), value

    def summary(self) -> str:
        """What was generated and what drafts brought, as a few lines to show."""
        n_tokens, n_rounds = self.total(TOKENS), self.total(ROUNDS)
        n_verified, n_accepted = self.total(VERIFIED), self.total(ACCEPTED)
        rate, speedup = self.value(ACCEPTANCE), self.value(SPEEDUP)
        drafting_s, verifying_s = self.total(DRAFT_SECONDS), self.total(VERIFY_SECONDS)
        return "\n".join(
            (
                f"tokens      {n_tokens:.0f} in {n_rounds:.0f} rounds"
                + (f", {n_tokens / n_rounds:.2f} a round" if n_rounds else ""),
                f"verified    {n_verified:.0f}: {n_accepted:.0f} accepted, "
                f"{n_verified - n_accepted:.0f} refuted"
                + (f" ({rate:.0%} right)" if rate is not None else ""),
                f"time        {drafting_s:.3f} s drafting, {verifying_s:.3f} s verifying",
                "speed-up    "
                + (f"{speedup:.2f}" if speedup is not None else "unknown: nothing to compare"),
            )
        )

    def prometheus(self) -> str:
        """The figures in Prometheus' text format, ending with a newline."""
        lines: list[str] = []
        told: Metric | None = None
        for metric, labels, value in self.samples():
            if metric is not told:
                lines.append(f"# HELP {metric.name} {metric.help}")
                lines.append(f"# TYPE {metric.name} {metric.kind}")
                told = metric
            lines.append(f"{metric.name}{_spelled(labels)} {_number(value)}")
        return "\n".join((*lines, ""))


def _changes(event: Event) -> Iterator[Change]:
    yield from _of_engine(event)
    yield from _of_reply(event)


def _of_engine(event: Event) -> Iterator[Change]:
    match event:
        case Loaded():
            yield from _loaded(event)
        case CacheChanged(n_used=n_used, n_cells=n_cells, kv_bytes=kv_bytes):
            yield CELLS_USED, n_used, ()
            yield CELLS, n_cells, ()
            yield KV_BYTES, kv_bytes, ()
        case TiersChanged(report=report):
            for tier in report.tiers:
                yield TIER_BYTES, tier.nbytes, (tier.name,)
                yield TIER_TOKENS, tier.n_tokens, (tier.name,)
        case ThreadsChanged(n_decode=n_decode, n_prefill=n_prefill):
            yield from _threads((n_decode, n_prefill))
        case WorkerStopped():
            yield STOPS, 1, ()
        case _:
            return


def _of_reply(event: Event) -> Iterator[Change]:
    match event:
        case PromptReady(n_prompt=n_prompt, n_reused=n_reused, elapsed_s=elapsed_s):
            yield PROMPT_TOKENS, n_prompt, ()
            yield REUSED_TOKENS, n_reused, ()
            yield PROMPT_SECONDS, elapsed_s, ()
        case TokensCommitted(tokens=tokens):
            for token in tokens:
                yield TOKENS, 1, (token.kind,)
        case RoundFinished():
            yield from _round(event)
        case Finished(reason=reason, stats=stats):
            yield REPLIES, 1, (reason,)
            yield FIRST_TOKEN, stats.first_token_s, ()
            yield DECODE_TPS, stats.decode_tps, ()
            yield SPEEDUP, stats.speedup, ()
            yield SAVED, stats.saved_s, ()
        case Failed():
            yield FAILURES, 1, ()
        case _:
            return


def _loaded(event: Loaded) -> Iterator[Change]:
    yield LOAD_SECONDS, event.elapsed_s, ()
    for buffer in event.buffers:
        yield BUFFER_BYTES, buffer.nbytes, (buffer.owner, buffer.kind, buffer.device)
    if event.n_threads is not None:
        yield from _threads(event.n_threads)


def _threads(n_threads: tuple[int, int]) -> Iterator[Change]:
    for phase, number in zip(("decode", "prefill"), n_threads, strict=True):
        yield THREADS, number, (phase,)


def _round(event: RoundFinished) -> Iterator[Change]:
    source = (event.source or NOBODY,)
    yield ROUNDS, 1, source
    if event.source is not None:
        yield DRAFTED, event.n_drafted, source
        yield VERIFIED, event.n_verified, source
        yield EXAMINED, event.n_examined, source
        yield ACCEPTED, event.n_accepted, source
    yield NEAR_TIES, event.n_near_ties, ()
    yield DRAFT_SECONDS, event.draft_s, ()
    yield VERIFY_SECONDS, event.verify_s, ()
    yield DECODE_SECONDS, event.elapsed_s, ()
    yield DRAFT_LENGTH, event.next_length, ()
    yield PLAIN_STEP, event.plain_step_s, ()


def _counted(report: CacheReport) -> Iterator[tuple[Labels, float]]:
    """The cache's counts by name, such as `hits`."""
    for name, value in asdict(report.counts).items():
        if name.startswith("n_"):
            yield (name.removeprefix("n_"),), value


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else repr(float(value))


def _spelled(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
