"""A report of cache quality as one HTML file: no script, no link."""

from collections.abc import Iterator
from pathlib import Path

from app.bench.report_html import bar_chart, page_environment
from app.render.quality import (
    BY_POSITION,
    COST,
    INTERVALS,
    MAIN,
    cost_rows,
    cost_title,
    has_costs,
    interval_rows,
    main_row,
    part_tables,
    subject_lines,
    verdict_lines,
)
from engine.policy.explain import TEXT_NAMES
from engine.quality.records import Breakdown, Measurement, Report

TEMPLATE = Path(__file__).with_name("report.html.jinja")


def html_page(report: Report) -> str:
    """The page as the text of an HTML file; the template escapes everything from outside."""
    return (
        page_environment(TEMPLATE)
        .get_template(TEMPLATE.name)
        .render(
            report=report,
            facts=subject_lines(report),
            verdicts=list(verdict_lines(report)),
            main_titles=MAIN,
            main_rows=[main_row(row) for row in report.measurements],
            intervals_title=INTERVALS,
            intervals=interval_rows(report),
            parts=list(_parts(report)),
            cost_title=cost_title(report),
            cost_titles=COST,
            cost_rows=cost_rows(report) if has_costs(report) else (),
            texts=[(text.name, text.kind, f"{text.n_tokens:,}") for text in report.texts],
        )
    )


def _parts(report: Report) -> Iterator[dict[str, object]]:
    for title, titles, rows in part_tables(report):
        if len(titles) > 1 and rows:
            charts = list(_charts(report, is_by_position=title == BY_POSITION))
            yield {"title": title, "titles": titles, "rows": rows, "charts": charts}


def _charts(report: Report, *, is_by_position: bool) -> Iterator[str]:
    """A bar for each kind and part, in millinats; the control among them."""

    def parts_of(row: Measurement) -> tuple[Breakdown, ...]:
        return row.by_position if is_by_position else row.by_text

    for name in dict.fromkeys(part.name for row in report.measurements for part in parts_of(row)):
        bars = [
            (
                f"{row.kind} {row.role if row.role == 'control' else ''}",
                1000 * part.scores.kl_mean.value,
            )
            for row in report.measurements
            for part in parts_of(row)
            if part.name == name and row.role != "reference"
        ]
        yield bar_chart(bars, f"{TEXT_NAMES.get(name, name)}: KL mean, thousandths of a nat")
