"""A report of cache quality as one HTML file: no script, no link."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from app.bench.report_html import bar_chart, page_environment
from app.quality.table import (
    COST,
    MAIN,
    cost_row,
    cost_title,
    main_row,
    part_rows,
    subject_lines,
    verdict_lines,
)
from engine.policy.sentence import TEXT_NAMES
from engine.quality.records import Part, Report

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
            parts=list(_parts(report)),
            cost_title=cost_title(report),
            cost_titles=COST,
            cost_rows=[cost_row(row) for row in report.measurements if row.role != "control"],
            texts=[(text.name, text.kind, f"{text.n_tokens:,}") for text in report.texts],
        )
    )


def _parts(report: Report) -> Iterator[dict[str, object]]:
    sections = (
        ("KL mean by kind of text", [row.by_text for row in report.measurements]),
        ("KL mean by position", [row.by_position for row in report.measurements]),
    )
    for title, parts in sections:
        titles, rows = part_rows(report, parts)
        if len(titles) > 1 and rows:
            charts = list(_charts(report, parts))
            yield {"title": title, "titles": titles, "rows": rows, "charts": charts}


def _charts(report: Report, parts: Sequence[Sequence[Part]]) -> Iterator[str]:
    """A bar for each kind and part, in millinats; the control among them."""
    for name in dict.fromkeys(part.name for listed in parts for part in listed):
        bars = [
            (
                f"{row.kind} {row.role if row.role == 'control' else ''}",
                1000 * part.scores.kl_mean.value,
            )
            for row, listed in zip(report.measurements, parts, strict=True)
            for part in listed
            if part.name == name and row.role != "reference"
        ]
        yield bar_chart(bars, f"{TEXT_NAMES.get(name, name)}: KL mean, thousandths of a nat")
