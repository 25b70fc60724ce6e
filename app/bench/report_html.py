"""One HTML file with everything: no script, no link, readable in light and dark."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import format as fmt
from app.bench.charts import Series, bar_chart, curve_chart, legend, ratio_chart
from app.bench.policies import parse_policy
from app.bench.results import PromptRecord, Results
from app.bench.summary import PolicySummary, SetSummary, batch_curve, summarise
from app.bench.table import (
    accepted,
    against_line,
    against_overall,
    interval,
    ratio,
    same_text,
    set_facts,
    sources,
)
from app.bench.verdict import (
    auto_against_best,
    noise_warning,
    overall_of,
    recommend,
    slow_prompts,
)

TEMPLATE = Path(__file__).with_name("report.html.jinja")


def html_report(results: Results) -> str:
    """The report as the text of an HTML file; the template escapes everything from outside."""
    policies = results.subject.policies
    summaries = summarise(results.prompts, policies)
    return (
        _environment()
        .get_template(TEMPLATE.name)
        .render(
            results=results,
            subject=results.subject,
            machine=results.machine,
            advice=recommend(summaries, policies),
            noise=noise_warning(summaries),
            overall_titles=("policy", "geometric mean", *(summary.label for summary in summaries)),
            overall_rows=[_overall_row(summaries, policy) for policy in policies],
            against_overall=against_overall(summaries),
            slow_rows=list(_slow_rows(summaries)),
            sets=[_set(summary, results.prompts) for summary in summaries],
            curve=_curve(results.prompts),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE.parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "nbytes": fmt.nbytes,
        "seconds": fmt.seconds,
        "ratio": ratio,
        "set_facts": set_facts,
    }
    return environment


def _overall_row(summaries: Sequence[SetSummary], policy: str) -> tuple[str, ...]:
    found = (summary.find(policy) for summary in summaries)
    means = (ratio(each.mean if each else None) for each in found)
    return policy, ratio(overall_of(summaries, policy)), *means


def _slow_rows(summaries: Sequence[SetSummary]) -> Iterable[tuple[str, ...]]:
    for each in slow_prompts(summaries):
        yield (
            each.set_label,
            each.prompt.prompt,
            each.policy,
            ratio(each.prompt.ratio),
            ", ".join(f"{value:.2f}" for value in each.prompt.pairs),
            each.prompt.last_reason,
        )


def _set(summary: SetSummary, records: Sequence[PromptRecord]) -> dict[str, object]:
    """What the template shows of a prompt set."""
    against = [each for each in auto_against_best(summary) if each.ratio is not None]
    return {
        "summary": summary,
        "rows": [_row(policy) for policy in summary.policies],
        "against": [against_line(each) for each in against],
        "charts": list(_charts(summary, records)),
    }


def _row(policy: PolicySummary) -> tuple[str, ...]:
    rate = policy.tokens_per_round
    return (
        policy.policy,
        ratio(policy.mean),
        interval(policy.interval),
        ratio(policy.mean_of_all),
        accepted(policy),
        sources(policy),
        fmt.NO_VALUE if rate is None else f"{rate:.2f}",
        same_text(policy),
    )


def _charts(summary: SetSummary, records: Sequence[PromptRecord]) -> Iterable[str]:
    prompts = [
        record.prompt
        for record in records
        if (record.set_name, record.temperature) == (summary.set_name, summary.temperature)
        and record.failure is None
    ]
    series = [
        Series(
            policy.policy,
            {each.prompt: each.ratio for each in policy.ratios},
            is_main=parse_policy(policy.policy).is_auto,
        )
        for policy in summary.policies
    ]
    yield legend(series)
    yield ratio_chart(prompts, series, f"{summary.label}: speed over plain, prompt by prompt")
    rates = [(policy.policy, policy.acceptance) for policy in summary.policies]
    bars = [(policy, 100 * rate) for policy, rate in rates if rate is not None]
    if bars:
        yield bar_chart(bars, f"{summary.label}: accepted of verified tokens", unit=" %")


def _curve(records: Sequence[PromptRecord]) -> str:
    """The chart of what a batch costs; empty with fewer than two sizes."""
    points = [(point.n_rows, point.steps) for point in batch_curve(records)]
    if len(points) < 2:
        return ""
    return curve_chart(points, "cost of a batch in plain steps, by its tokens")
