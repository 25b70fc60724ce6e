"""Figures come from events alone and agree with what a session counts itself."""

from collections.abc import Iterator

import pytest

from engine.cache.report import CacheCounts, CacheReport, TierUse
from engine.events import (
    Failed,
    Finished,
    FinishReason,
    GenerationStats,
    SourceCounts,
    TiersChanged,
    WorkerStopped,
)
from engine.metrics import Metrics
from tests.support.fakes_client import CONFIGURATION, loaded
from tests.support.sessions import DRAFT, make_session, request, run


@pytest.fixture
def observed() -> tuple[Metrics, list[Finished]]:
    session, metrics, ends = make_session(DRAFT), Metrics(), []
    for text in ("abcabcabc", "abcabcabd"):
        for event in run(session, request(text)):
            metrics.observe(event)
            if isinstance(event, Finished):
                ends.append(event)
    return metrics, ends


def test_counters_are_the_sums_that_sessions_report_at_the_end(
    observed: tuple[Metrics, list[Finished]],
) -> None:
    metrics, ends = observed
    stats = [end.stats for end in ends]
    sums = {
        "prompt_tokens_total": sum(each.n_prompt for each in stats),
        "reused_tokens_total": sum(each.n_reused for each in stats),
        "rounds_total": sum(each.n_rounds for each in stats),
        "drafted_tokens_total": sum(each.n_drafted for each in stats),
        "verified_tokens_total": sum(each.n_verified for each in stats),
        "examined_tokens_total": sum(each.n_examined for each in stats),
        "accepted_tokens_total": sum(each.n_accepted for each in stats),
        "tokens_total": sum(each.n_emitted for each in stats),
        "replies_total": 2,
    }
    assert {metric: metrics.total(metric) for metric in sums} == sums
    assert min(sums.values()) > 0
    assert metrics.total("decode_seconds_total") == pytest.approx(
        sum(each.decode_s for each in stats)
    )
    assert (
        metrics.value("acceptance_rate")
        == sums["accepted_tokens_total"] / sums["verified_tokens_total"]
    )
    assert metrics.value("accepted_tokens_total", "draft") == sums["accepted_tokens_total"]
    assert metrics.value("context_used_cells") == ends[-1].n_used


def test_the_engine_reports_its_buffers_threads_tiers_and_faults() -> None:
    metrics = Metrics()
    metrics.observe(loaded(CONFIGURATION))
    counts = CacheCounts(n_hits=3, n_evictions=1, saved_s=2.5)
    report = CacheReport((TierUse("warm", 2, 100, 4096, 8192),), counts)
    metrics.observe(TiersChanged(report))
    metrics.observe(TiersChanged(report))  # totals are taken over, not added up
    metrics.observe(Failed("a", "b"))
    metrics.observe(WorkerStopped("a", "b", -9))
    assert metrics.value("buffer_bytes", "target", "KV", "CPU") == 180 << 20
    assert metrics.value("tier_bytes", "warm") == 4096
    assert metrics.value("cache_total", "hits") == 3
    assert metrics.value("cache_total", "evictions") == 1
    assert (metrics.value("failures_total"), metrics.value("engine_stops_total")) == (1, 1)
    assert metrics.value("threads", "decode") is None


def parsed(text: str) -> Iterator[tuple[str, str, float]]:
    """Family, series and value of each line, as a scraper reads them."""
    family = ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# TYPE "):
            family = line.split()[2]
        elif not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            assert series.partition("{")[0] == family
            yield family, series, float(value)


def test_the_text_has_each_series_once_under_its_help_and_type(
    observed: tuple[Metrics, list[Finished]],
) -> None:
    metrics, _ = observed
    metrics.observe(loaded(CONFIGURATION))
    text = metrics.prometheus()
    found = list(parsed(text))
    series = [name for _, name, _ in found]
    assert len(series) == len(set(series)) > 20
    for family in {family for family, _, _ in found}:
        assert text.count(f"# HELP {family} ") == text.count(f"# TYPE {family} ") == 1
    assert ("kvchat_rounds_total", metrics.total("rounds_total")) in [row[1:] for row in found]


def test_a_name_of_others_stays_inside_its_quotes() -> None:
    metrics = Metrics()
    stats = GenerationStats(by_source={'custom:a"} 1\n\\evil': SourceCounts(1, 1, 1, 1, 1)})
    metrics.observe(Finished(FinishReason.END, "", (), "", 0, stats, n_used=1, n_cells=2))
    text = metrics.prometheus()
    assert r'kvchat_drafted_tokens_total{source="custom:a\"} 1\n\\evil"} 1' in text
    assert all(line.startswith(("#", "kvchat_")) for line in text.splitlines())
