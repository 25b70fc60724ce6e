"""The results as tables for a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from app import format as fmt
from app.bench.curve import CurvePoint, batch_curve
from app.bench.records import Results
from app.bench.summary import PolicySummary, SetSummary, summarise
from app.bench.verdict import (
    AutoAgainstBest,
    Recommendation,
    auto_against_best,
    best_fixed,
    noise_warning,
    overall,
    overall_of,
    recommend,
    slow_prompts,
)

GOOD, BAD, MUTED = "green", "red", "dim"
COLUMNS = ("policy", "of plain", "95 %", "worst prompt", "accepted", "per round", "same text")


def report(results: Results) -> Iterator[RenderableType]:
    """Give everything that a benchmark says, from the sets to the recommendation."""
    policies = results.subject.policies
    summaries = summarise(results.prompts, policies)
    for summary in summaries:
        yield Text()
        yield from _set(summary)
    if len(summaries) > 1:
        yield Text()
        yield from _overall(summaries, policies)
    yield from _slow(summaries)
    yield from _curve(batch_curve(results.prompts))
    yield Text()
    yield recommendation_text(recommend(summaries, policies))
    if (noise := noise_warning(summaries)) is not None:
        yield Text(noise, style=BAD)


def recommendation_text(advice: Recommendation) -> Text:
    """Give the setting that the benchmark recommends, and why."""
    return Text.assemble("Recommended: ", (advice.name, "bold"), f" - {advice.reason}.")


def _set(summary: SetSummary) -> Iterator[RenderableType]:
    yield Text.assemble((summary.label, "bold"), (f"  {set_facts(summary)}", MUTED))
    if summary.n_prompts:
        table = _table(COLUMNS)
        best = best_fixed(summary)
        for policy in summary.policies:
            table.add_row(*_cells(policy), style="bold" if policy is best else "")
        yield table
    for prompt, reason in summary.failures:
        yield Text(f"{prompt} failed: {reason}", style=BAD)
    for comparison in auto_against_best(summary):
        if comparison.ratio is not None:
            yield Text(against_line(comparison))


def set_facts(summary: SetSummary) -> str:
    """Give how many prompts count, how fast plain decoding was, and what is noise."""
    facts = [fmt.counted(summary.n_prompts, "prompt"), f"plain {fmt.rate(summary.plain_tps)} tok/s"]
    if summary.plain_spread is not None:
        facts.append(f"two plain runs differ by {100 * summary.plain_spread:.1f} %")
    if summary.n_loops:
        facts.append(f"{summary.n_loops} end in a loop and are in no mean")
    if summary.n_short:
        facts.append(f"{summary.n_short} too short to time")
    return " · ".join(facts)


def against_line(comparison: AutoAgainstBest) -> str:
    """Give how `auto` stands to the best fixed length of its set."""
    return (
        f"best fixed, chosen afterwards: {comparison.best_fixed}; {comparison.auto} is at "
        f"{ratio(comparison.ratio)} of it{interval(comparison.interval, ' ({})')}"
    )


def ratio(value: float | None) -> str:
    """A ratio with two digits behind the point."""
    return fmt.NO_VALUE if value is None else f"{value:.3f}"


def interval(ends: tuple[float, float] | None, form: str = "{}") -> str:
    """Both ends of an interval, nothing where there is none."""
    return "" if ends is None else form.format(f"{ends[0]:.2f} to {ends[1]:.2f}")


def _cells(policy: PolicySummary) -> tuple[Text, ...]:
    worst = policy.worst
    same = f"{policy.n_same} of {policy.n_runs}"
    if policy.parts_at is not None:
        same += f", from token {policy.parts_at}"
    rate = policy.tokens_per_round
    return (
        Text(policy.policy),
        Text(ratio(policy.mean), style=_style(policy)),
        Text(interval(policy.interval)),
        Text("" if worst is None else f"{worst.ratio:.2f} {worst.prompt}"),
        Text(accepted(policy)),
        Text(fmt.NO_VALUE if rate is None else f"{rate:.2f}"),
        Text(same, style="" if policy.parts_at is None else "yellow"),
    )


def accepted(policy: PolicySummary) -> str:
    """The share of accepted tokens, and of how many."""
    if not policy.has_drafts:
        return "no drafts"
    return f"{fmt.percent(policy.acceptance)} of {fmt.count(policy.n_verified)}"


def sources(policy: PolicySummary) -> str:
    """Give the acceptance of every predictor of a policy, nothing where there is only one."""
    if len(policy.by_source) < 2:
        return ""
    shares = {name: fmt.share(accepted, n) for name, (n, accepted) in policy.by_source.items()}
    return ", ".join(f"{name} {fmt.percent(value)}" for name, value in shares.items())


def _style(policy: PolicySummary) -> str:
    """The colour of a gain or a loss; none where it may be the machine's doing."""
    mean = policy.possible
    if mean is None or 0.98 < mean < 1.02:
        return ""
    return GOOD if mean > 1 else BAD


def _overall(summaries: Sequence[SetSummary], policies: Sequence[str]) -> Iterator[RenderableType]:
    yield Text("All sets, their geometric mean", style="bold")
    table = _table(("policy", "of plain", *(summary.label for summary in summaries), "with loops"))
    for policy in policies:
        found = [summary.find(policy) for summary in summaries]
        table.add_row(
            policy,
            ratio(overall_of(summaries, policy)),
            *(ratio(each.mean if each else None) for each in found),
            ratio(overall(each.mean_of_all if each else None for each in found)),
        )
    yield table
    for auto, value in against_overall(summaries):
        yield Text(f"{auto} is at {ratio(value)} of the best fixed length of every set")


def against_overall(summaries: Sequence[SetSummary]) -> tuple[tuple[str, float | None], ...]:
    """Give every automatic policy with its mean over sets of its ratio to the best fixed one."""
    all_of = [comparison for summary in summaries for comparison in auto_against_best(summary)]
    return tuple(
        (name, overall(each.ratio for each in all_of if each.auto == name))
        for name in dict.fromkeys(comparison.auto for comparison in all_of)
    )


def _slow(summaries: Sequence[SetSummary]) -> Iterator[RenderableType]:
    slow = slow_prompts(summaries)
    if not slow:
        return
    yield Text()
    yield Text("Prompts on which auto is below 0.95 of plain", style="bold")
    for each in slow:
        pairs = ", ".join(f"{value:.2f}" for value in each.prompt.pairs)
        excluded = f" ({each.prompt.excluded})" if each.prompt.excluded else ""
        yield Text(
            f"{each.set_label}  {each.prompt.prompt}  {each.policy}  {each.prompt.ratio:.3f}, "
            f"pairs {pairs}{excluded}{f'  {reason}' if (reason := each.prompt.last_reason) else ''}"
        )


def _curve(points: Sequence[CurvePoint]) -> Iterator[RenderableType]:
    if len(points) < 2:
        return
    yield Text()
    yield Text("Rounds by the tokens in their batch", style="bold")
    table = _table(("tokens", *(str(point.n_rows) for point in points)))
    table.add_row("ms", *(f"{1e3 * point.seconds:.1f}" for point in points))
    table.add_row("plain steps", *(f"{point.steps:.2f}" for point in points))
    yield table


def _table(titles: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style=MUTED)
    for title in titles:
        is_text = title in ("policy", "worst prompt", "same text", "tokens", "95 %")
        table.add_column(title, justify="left" if is_text else "right", overflow="fold")
    return table
