"""One HTML file with everything: no script, no link, readable in light and dark."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from app import format as fmt
from app.bench.policies import parse_policy
from app.bench.results import PromptRecord, Results
from app.bench.summary import SetSummary, batch_curve, summarise
from app.bench.table import (
    PAGE_COLUMNS,
    against_line,
    against_overall,
    overall_rows,
    overall_titles,
    policy_row,
    ratio,
    set_facts,
)
from app.bench.verdict import (
    auto_against_best,
    noise_warning,
    recommend,
    slow_prompts,
)

WIDTH = 720
LEFT, RIGHT, TOP, BOTTOM = 190, 16, 26, 30
ROW = 18
MARK, MAIN_MARK = 3.5, 6.0
"""Radius of a mark."""
N_COLOURS = 8
"""Colours `--c0` to `--c7` of the page; further series begin again with another shape."""

TEMPLATE = Path(__file__).with_name("report.html.jinja")


@dataclass(frozen=True, slots=True)
class Series:
    """Values by label; a label without a value has no mark."""

    name: str
    values: dict[str, float]
    is_main: bool = False
    """Drawn larger and above the others."""


def ratio_chart(labels: Sequence[str], series: Sequence[Series], title: str) -> str:
    """A dot for each ratio, a row for each label, on a logarithmic axis around 1.

    Twice as fast and half as fast are equally far from the middle.
    """
    values = [value for each in series for value in each.values.values()]
    low, high = min([*values, 0.9]) * 0.97, max([*values, 1.1]) * 1.03
    plot = WIDTH - LEFT - RIGHT

    def x(value: float) -> float:
        return LEFT + plot * math.log(value / low) / math.log(high / low)

    height = TOP + ROW * len(labels) + BOTTOM
    parts = [_axis(x(tick), f"{tick:g}", height, is_one=tick == 1) for tick in ticks(low, high)]
    for row, label in enumerate(labels):
        y = TOP + ROW * row + ROW / 2
        parts.append(_label(label, y))
        for index, each in sorted(enumerate(series), key=lambda pair: pair[1].is_main):
            value = each.values.get(label)
            if value is not None:
                said = f"{each.name} on {label}: {value:.3f}"
                size = MAIN_MARK if each.is_main else MARK
                parts.append(_mark(x(value), y, index, said, size))
    return _svg(height, title, parts)


def bar_chart(bars: Sequence[tuple[str, float]], title: str, *, unit: str = "") -> str:
    """A bar from 0 for each value, with the number after it."""
    plot = WIDTH - LEFT - RIGHT - 60
    most = max([value for _, value in bars], default=0.0) or 1.0
    parts = []
    for row, (label, value) in enumerate(bars):
        y = TOP + ROW * row + ROW / 2
        width = plot * value / most
        parts.append(_label(label, y))
        parts.append(
            f'<rect class="bar" x="{LEFT}" y="{y - 6:.1f}" width="{width:.1f}" height="12"/>'
            f'<text x="{LEFT + width + 6:.1f}" y="{y + 4:.1f}">{value:.3g}{escape(unit)}</text>'
        )
    return _svg(TOP + ROW * len(bars) + 8, title, parts)


def curve_chart(points: Sequence[tuple[int, float]], title: str) -> str:
    """What batches cost in plain steps, beside the line on which n tokens cost n steps."""
    height, left = 260, 50
    most_x = max([n for n, _ in points], default=2)
    most_y = max([steps for _, steps in points], default=2.0) * 1.1

    def at(n: float, steps: float) -> tuple[float, float]:
        across = (WIDTH - left - RIGHT) * (n - 1) / max(most_x - 1, 1)
        return left + across, height - BOTTOM - (height - TOP - BOTTOM) * steps / most_y

    parts = [
        f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{at(1, tick)[1]:.1f}" '
        f'y2="{at(1, tick)[1]:.1f}"/>'
        f'<text class="end" x="{left - 6}" y="{at(1, tick)[1] + 4:.1f}">{tick:g}</text>'
        for tick in _round_steps(most_y)
    ]
    end = min(float(most_x), most_y)
    parts.append(_line([at(1, 1), at(end, end)], "one"))
    parts.append(_line([at(n, steps) for n, steps in points], "s0"))
    for n, steps in points:
        x, y = at(n, steps)
        parts.append(_mark(x, y, 0, f"{n} tokens: {steps:.2f} plain steps"))
        parts.append(f'<text class="mid" x="{x:.1f}" y="{height - 10}">{n}</text>')
    return _svg(height, title, parts)


def legend(series: Sequence[Series]) -> str:
    """The mark and the name of each series."""
    entries = [
        f'<span><svg width="14" height="14" aria-hidden="true">'
        f"{_mark(7, 7, index, each.name, MAIN_MARK if each.is_main else MARK)}</svg>"
        f"{escape(each.name)}</span>"
        for index, each in enumerate(series)
    ]
    return f'<p class="legend">{" ".join(entries)}</p>'


def ticks(low: float, high: float) -> list[float]:
    """Round ratios between two, 1 among them, few enough for their labels."""
    wide = (0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)
    narrow = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
    middle = (0.5, 0.6, 0.7, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5)
    span = high / low
    chosen = narrow if span < 1.8 else middle if span < 4 else wide
    return [tick for tick in chosen if low <= tick <= high]


def _round_steps(most: float) -> list[float]:
    size = next(size for size in (0.5, 1.0, 2.0, 5.0, 10.0, 50.0, math.inf) if most / size <= 6)
    return [] if math.isinf(size) else [size * k for k in range(int(most / size) + 1)]


def _mark(x: float, y: float, index: int, title: str, size: float = MARK) -> str:
    """A dot, ring or square, so that more series than colours stay apart."""
    shape = index // N_COLOURS % 3
    style = f"s{index % N_COLOURS}"
    said = f"<title>{escape(title)}</title>"
    if shape == 2:
        corner = f'x="{x - size:.1f}" y="{y - size:.1f}"'
        side = f'width="{2 * size:g}" height="{2 * size:g}"'
        return f'<rect class="{style}" {corner} {side}>{said}</rect>'
    ring = " ring" if shape == 1 else ""
    return f'<circle class="{style}{ring}" cx="{x:.1f}" cy="{y:.1f}" r="{size:g}">{said}</circle>'


def _axis(x: float, text: str, height: float, *, is_one: bool) -> str:
    style = "one" if is_one else "grid"
    return (
        f'<line class="{style}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM + 4}"/>'
        f'<text class="mid" x="{x:.1f}" y="{height - 8}">{text}</text>'
    )


def _label(text: str, y: float) -> str:
    short = text if len(text) <= 28 else f"{text[:27]}…"
    return (
        f'<text class="end" x="{LEFT - 8}" y="{y + 4:.1f}">{escape(short)}'
        f"<title>{escape(text)}</title></text>"
    )


def _line(points: Sequence[tuple[float, float]], style: str) -> str:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline class="{style} line" points="{joined}"/>'


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}">'
        f'<text class="title" x="0" y="14">{escape(title)}</text>{"".join(parts)}</svg>'
    )


def html_report(results: Results) -> str:
    """The report as the text of an HTML file; the template escapes everything from outside."""
    policies = results.subject.policies
    summaries = summarise(results.prompts, policies)
    return (
        page_environment(TEMPLATE)
        .get_template(TEMPLATE.name)
        .render(
            results=results,
            subject=results.subject,
            machine=results.machine,
            advice=recommend(summaries, policies),
            noise=noise_warning(summaries),
            overall_titles=overall_titles(summaries),
            overall_rows=list(overall_rows(summaries, policies)),
            against_overall=against_overall(summaries),
            slow_rows=list(_slow_rows(summaries)),
            titles=PAGE_COLUMNS,
            sets=[_set(summary, results.prompts) for summary in summaries],
            curve=_curve(results.prompts),
        )
    )


def page_environment(template: Path) -> Environment:
    """What renders a page that extends `page.html.jinja`; it escapes everything from outside."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATE.parent]),
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
        "rows": [policy_row(policy, PAGE_COLUMNS) for policy in summary.policies],
        "against": [against_line(each) for each in against],
        "charts": list(_charts(summary, records)),
    }


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
