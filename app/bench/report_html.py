"""One HTML file with everything: no script, no link, readable in light and dark."""

from collections.abc import Iterable, Sequence
from html import escape

from app import format as fmt
from app.bench.charts import Series, bar_chart, curve_chart, legend, ratio_chart
from app.bench.curve import batch_curve
from app.bench.policies import parse_policy
from app.bench.records import PromptRecord, Results
from app.bench.summary import PolicySummary, SetSummary, summarise
from app.bench.table import (
    accepted,
    against_line,
    against_overall,
    interval,
    ratio,
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

STYLE = (
    """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #626b76; --paper: #fff; --rule: #d9dde2;
  --c0: #0b6bcb; --c1: #c2410c; --c2: #15803d; --c3: #7c3aed; --c4: #b45309; --c5: #be185d;
  --c6: #0f766e; --c7: #4b5563; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #98a2ae; --paper: #16191d;
  --rule: #333a42; --c0: #6cb2ff; --c1: #ff9c6b; --c2: #6fd08c; --c3: #b79bff; --c4: #f2b84b;
  --c5: #ff8fbf; --c6: #5cd6c6; --c7: #b0b8c1; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
p.facts, figcaption, .soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .15rem .7rem .15rem 0; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child, td.text { text-align: left; }
th { color: var(--soft); font-weight: 500; }
pre { white-space: pre-wrap; border-left: 3px solid var(--rule); padding-left: .8rem; }
.verdict { border: 1px solid var(--rule); border-radius: 6px; padding: .6rem .9rem; }
.legend span { margin-right: 1rem; white-space: nowrap; } .legend svg { vertical-align: -2px;
  margin-right: .3rem; }
svg.chart { width: 100%; height: auto; margin: .8rem 0; }
svg text { font: 11px system-ui, sans-serif; fill: var(--ink); } svg text.title { font-size: 13px;
  font-weight: 600; } svg .end { text-anchor: end; } svg .mid { text-anchor: middle; }
svg .grid { stroke: var(--rule); } svg .one { stroke: var(--soft); stroke-dasharray: 3 3; }
svg .bar { fill: var(--c0); } svg .line { fill: none; stroke-width: 1.8; }
"""
    + "".join(f"svg .s{n} {{ fill: var(--c{n}); stroke: var(--c{n}); }}\n" for n in range(8))
    + "svg .ring, svg .line { fill: none; } svg .ring { stroke-width: 2; }"
)

TITLES = (
    "policy", "of plain", "95 %", "with loops", "accepted", "by source", "per round", "same text",
)  # fmt: skip


def html_report(results: Results) -> str:
    """Give the report as the text of an HTML file; everything from outside is escaped."""
    policies = results.subject.policies
    summaries = summarise(results.prompts, policies)
    parts = [
        *_head(results, summaries),
        *_overall(summaries, policies),
        *(part for summary in summaries for part in _set(summary, results.prompts)),
        *_curve(results.prompts),
        *_replies(results.prompts),
    ]
    title = f"kvchat bench: {escape(results.subject.model)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"{chr(10).join(parts)}\n</body>\n</html>\n"
    )


def _head(results: Results, summaries: Sequence[SetSummary]) -> Iterable[str]:
    subject, machine = results.subject, results.machine
    advice = recommend(summaries, subject.policies)
    draft = f" with {subject.draft}" if subject.draft else ""
    yield f"<h1>What speculation gains: {escape(subject.model)}{escape(draft)}</h1>"
    yield (
        f'<p class="facts">{escape(machine.processor)}, {machine.n_cores} cores, '
        f"{fmt.nbytes(machine.memory_bytes)}"
        f"{escape(''.join(f', {gpu}' for gpu in machine.gpus))} · {escape(machine.system)} · "
        f"{escape(machine.llama_cpp)} · kvchat {escape(machine.kvchat)} · "
        f"{escape(results.started)}, {fmt.seconds(results.elapsed_s)}</p>"
    )
    yield (
        f'<p class="facts">{escape(subject.file_type)}, {subject.n_vocab:,} tokens of vocabulary, '
        f"context {subject.n_ctx:,}; replies of up to {subject.n_tokens} tokens, "
        f"{subject.n_pairs} pairs, seed {subject.seed}, {escape(subject.verification)}"
        f"{', strict' if subject.strict else ''}. Every number is a speed over that of plain "
        "decoding right beside it; the median of the pairs stands for a prompt.</p>"
    )
    yield f'<p class="verdict"><strong>Recommended: {escape(advice.name)}</strong>: '
    yield f"{escape(advice.reason)}.</p>"
    if (noise := noise_warning(summaries)) is not None:
        yield f"<p><strong>{escape(noise)}</strong></p>"


def _overall(summaries: Sequence[SetSummary], policies: Sequence[str]) -> Iterable[str]:
    if not summaries:
        return
    yield "<h2>All sets</h2>"
    labels = [summary.label for summary in summaries]
    rows = [
        (
            policy,
            ratio(overall_of(summaries, policy)),
            *(
                ratio(each.mean if (each := summary.find(policy)) else None)
                for summary in summaries
            ),
        )
        for policy in policies
    ]
    yield _table(("policy", "geometric mean", *labels), rows)
    for auto, value in against_overall(summaries):
        if value is not None:
            said = f"{auto} is at {ratio(value)} of the best fixed length of every set."
            yield f"<p>{escape(said)}</p>"
    slow = slow_prompts(summaries)
    if slow:
        yield "<p>Prompts on which auto is below 0.95 of plain decoding:</p>"
        yield _table(
            ("set", "prompt", "policy", "median", "pairs", "the rule said at last"),
            [
                (
                    each.set_label,
                    each.prompt.prompt,
                    each.policy,
                    ratio(each.prompt.ratio),
                    ", ".join(f"{value:.2f}" for value in each.prompt.pairs),
                    each.prompt.last_reason,
                )
                for each in slow
            ],
        )


def _set(summary: SetSummary, records: Sequence[PromptRecord]) -> Iterable[str]:
    yield f"<h2>{escape(summary.label)}</h2>"
    yield f'<p class="facts">{escape(set_facts(summary))}</p>'
    for prompt, reason in summary.failures:
        yield f"<p>{escape(prompt)} failed: {escape(reason)}</p>"
    if not summary.n_prompts:
        return
    yield _table(TITLES, [_row(policy) for policy in summary.policies])
    for comparison in auto_against_best(summary):
        if comparison.ratio is not None:
            yield f"<p>{escape(against_line(comparison))}</p>"
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
    accepted = [
        (policy.policy, 100 * policy.acceptance)
        for policy in summary.policies
        if policy.acceptance is not None
    ]
    if accepted:
        yield bar_chart(accepted, f"{summary.label}: accepted of verified tokens", unit=" %")


def _row(policy: PolicySummary) -> tuple[str, ...]:
    rate = policy.tokens_per_round
    same = f"{policy.n_same} of {policy.n_runs}"
    if policy.parts_at is not None:
        same += f", from token {policy.parts_at}"
    return (
        policy.policy,
        ratio(policy.mean),
        interval(policy.interval),
        ratio(policy.mean_of_all),
        accepted(policy),
        sources(policy),
        fmt.NO_VALUE if rate is None else f"{rate:.2f}",
        same,
    )


def _curve(records: Sequence[PromptRecord]) -> Iterable[str]:
    points = batch_curve(records)
    if len(points) < 2:
        return
    yield "<h2>What a batch costs</h2>"
    yield (
        '<p class="facts">Rounds of these runs by the tokens in their batch, in plain steps. '
        "Dashed: n tokens for n steps, where drafting can gain nothing.</p>"
    )
    title = "cost of a batch in plain steps, by its tokens"
    yield curve_chart([(point.n_rows, point.steps) for point in points], title)


def _replies(records: Sequence[PromptRecord]) -> Iterable[str]:
    yield "<h2>Plain replies</h2>"
    for record in records:
        if record.failure is not None:
            continue
        loop = ", ends in a loop" if record.is_loop else ""
        title = f"{record.set_name} at {record.temperature:g}: {record.prompt}{loop}"
        yield f"<details><summary>{escape(title)}</summary><pre>{escape(record.text)}</pre>"
        parted = [run for run in record.runs if run.parts_at is not None]
        for run in parted:
            yield (
                f'<p class="soft">{escape(run.policy)} parts at token {run.parts_at}: '
                f"{escape(run.parts_as)}</p>"
            )
        yield "</details>"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
