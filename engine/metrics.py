"""Counters and gauges of a running engine, computed from its events.

Pass each event to `Metrics.observe`; `prometheus()` returns the text for a scrape (exposition
format 0.0.4, https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict

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
METRICS: Mapping[str, tuple[str, ...]] = {
    "replies_total": ("Finished replies, by finish reason.", "reason"),
    "failures_total": ("Failed requests and loads.",),
    "engine_stops_total": ("Crashes of the engine process.",),
    "prompt_tokens_total": ("Prompt tokens.",),
    "reused_tokens_total": ("Prompt tokens reused from a cache.",),
    "prompt_seconds_total": ("Time spent on prefill.",),
    "tokens_total": ("Generated tokens.",),
    "rounds_total": ("Forward passes.",),
    "drafted_tokens_total": ("Drafted tokens.", "source"),
    "verified_tokens_total": ("Drafted tokens that the target evaluated.", "source"),
    "examined_tokens_total": (
        "Verified tokens up to and including the first rejected one.", "source",
    ),
    "accepted_tokens_total": ("Verified tokens that were accepted.", "source"),
    "near_ties_total": ("Positions whose top two tokens are nearly tied.",),
    "decode_seconds_total": ("Time spent on decode.",),
    "cache_total": ("Cache events: hits, saves, restores, evictions.", "event"),
    "acceptance_rate": ("Accepted tokens / verified tokens, all replies.",),
    "plain_step_seconds": ("Time of one decode step without drafts.",),
    "context_used_cells": ("Used cells of the context.",),
    "context_cells": ("Size of the context in cells.",),
    "kv_cache_bytes": ("Allocated bytes of the KV cache.",),
    "buffer_bytes": ("Bytes of each buffer.", "owner", "kind", "device"),
    "load_seconds": ("Time to load the model.",),
    "threads": ("Compute threads.", "phase"),
    "tier_bytes": ("Bytes of saved states.", "tier"),
    "tier_tokens": ("Tokens of saved states.", "tier"),
    "first_token_seconds": ("Time to first token of the last reply.",),
    "decode_tokens_per_second": ("Decode speed of the last reply.",),
    "speedup_ratio": ("Speedup over decoding without drafts, last reply.",),
    "saved_seconds": ("Time saved by drafts in the last reply; negative: a loss.",),
}  # fmt: skip
"""Help text and label names by metric name; a counter ends with `_total`, others are gauges."""

Series = tuple[str, tuple[str, ...]]
"""Name and label values."""


class Metrics:
    """Metric values from the observed events; counters without labels start at 0.

    Counters of replies are sums of `Finished.stats`.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset all metrics."""
        self._of_engine: dict[Series, float] = {}
        self._stats = GenerationStats()
        self._last = GenerationStats()
        self._n_prompt = self._n_reused = 0

    def observe(self, event: Event) -> None:
        """Update the metrics from an event of a session, a worker or a client."""
        match event:
            case Finished(reason=reason, stats=stats):
                self._count("replies_total", reason)
                self._stats, self._last = self._stats + stats, stats
                self._n_prompt += stats.n_prompt or 0
                self._n_reused += stats.n_reused or 0
            case Failed():
                self._count("failures_total")
            case WorkerStopped():
                self._count("engine_stops_total")
            case _:
                known = ((series, value) for series, value in _gauges(event) if value is not None)
                self._of_engine.update(known)

    def _count(self, name: str, *labels: str) -> None:
        self._of_engine[name, labels] = self._of_engine.get((name, labels), 0.0) + 1

    def value(self, name: str, *labels: str) -> float | None:
        """Value of a metric with these label values; None if no event has set it."""
        return self._values().get((name, labels))

    def total(self, name: str) -> float:
        """Sum of a metric over its labels."""
        return sum(value for (of, _), value in self._values().items() if of == name)

    def _values(self) -> dict[Series, float]:
        stats, last = self._stats, self._last
        counters: dict[Series, float] = {
            (name, ()): 0.0
            for name, (_, *labels) in METRICS.items()
            if name.endswith("_total") and not labels
        }
        of_replies = {
            "prompt_tokens_total": self._n_prompt,
            "reused_tokens_total": self._n_reused,
            "prompt_seconds_total": stats.prefill_s,
            "tokens_total": stats.n_emitted or 0,
            "rounds_total": stats.n_rounds,
            "near_ties_total": stats.n_near_ties,
            "decode_seconds_total": stats.decode_s,
            "acceptance_rate": stats.acceptance_rate,
            "plain_step_seconds": last.plain_step_s,
            "first_token_seconds": last.first_token_s,
            "decode_tokens_per_second": last.decode_tps,
            "speedup_ratio": last.speedup,
            "saved_seconds": last.saved_s,
        }
        known = {(name, ()): value for name, value in of_replies.items() if value is not None}
        by_source = {
            (f"{count}_tokens_total", (source,)): getattr(counts, f"n_{count}")
            for source, counts in stats.by_source.items()
            for count in ("drafted", "verified", "examined", "accepted")
        }
        return counters | self._of_engine | known | by_source

    def summary(self) -> str:
        """Text of four lines about the generated tokens and the effect of drafts."""
        stats, speedup = self._stats, self._last.speedup
        rate, per_round = stats.acceptance_rate, stats.tokens_per_round
        gain = "unknown: no step without drafts was timed" if speedup is None else f"{speedup:.2f}"
        lines = (
            f"tokens      {stats.n_emitted or 0} in {stats.n_rounds} rounds"
            + ("" if per_round is None else f", {per_round:.2f} per round"),
            f"verified    {stats.n_verified}: {stats.n_accepted} accepted, "
            f"{stats.n_refuted} refuted" + ("" if rate is None else f" (acceptance {rate:.0%})"),
            f"time        {stats.decode_s:.3f} s decoding",
            f"speedup     {gain}",
        )
        return "\n".join(lines)

    def prometheus(self) -> str:
        """All values as text, each metric with its help and type."""
        values, lines = self._values(), []
        for name, (text, *labels) in METRICS.items():
            series = [(given, value) for (of, given), value in values.items() if of == name]
            if series:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} {kind}"]
            for given, value in series:
                pairs = zip(labels, map(_escaped, given), strict=True)
                inside = ",".join(f'{label}="{each}"' for label, each in pairs)
                number = f"{value:.0f}" if float(value).is_integer() else repr(float(value))
                lines.append(f"{PREFIX}{name}{f'{{{inside}}}' if inside else ''} {number}")
        return "\n".join((*lines, ""))


def _gauges(event: Event) -> Iterator[tuple[Series, float | None]]:
    match event:
        case Loaded(elapsed_s=elapsed_s, buffers=buffers, n_threads=n_threads):
            yield ("load_seconds", ()), elapsed_s
            for each in buffers:
                yield ("buffer_bytes", (each.owner, each.kind, each.device)), each.nbytes
            if n_threads is not None:
                yield from _gauges(ThreadsChanged(*n_threads))
        case CacheChanged(n_used=n_used, n_cells=n_cells, kv_bytes=kv_bytes):
            yield ("context_used_cells", ()), n_used
            yield ("context_cells", ()), n_cells
            yield ("kv_cache_bytes", ()), kv_bytes
        case TiersChanged(report=report):
            for tier in report.tiers:
                yield ("tier_bytes", (tier.name,)), tier.nbytes
                yield ("tier_tokens", (tier.name,)), tier.n_tokens
            for count, value in asdict(report.counts).items():
                if count.startswith("n_"):
                    yield ("cache_total", (count.removeprefix("n_"),)), value
        case ThreadsChanged(n_decode=n_decode, n_prefill=n_prefill):
            yield ("threads", ("decode",)), n_decode
            yield ("threads", ("prefill",)), n_prefill
        case _:
            pass


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
