"""How far a benchmark is, and its results as tables for a terminal."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from app import format as fmt
from app.bench.policies import parse_policy
from app.bench.prompt_sets import BenchPrompt
from app.bench.results import PromptRecord, Results
from app.bench.summary import (
    CurvePoint,
    PolicySummary,
    SetSummary,
    batch_curve,
    exclusion,
    median,
    pair_ratios,
    summarise,
)
from app.bench.verdict import (
    AutoAgainstBest,
    Recommendation,
    auto_against_best,
    best_fixed,
    overall,
    overall_of,
    recommend,
    slow_prompts,
)
from app.console import plain_table

GOOD, BAD, MUTED = "green", "red", "dim"
COLUMNS = ("policy", "of plain", "95 %", "worst prompt", "accepted", "per round", "same text")
TEXTS = ("policy", "worst prompt", "same text", "tokens", "95 %")
"""Columns that are no numbers."""


def report(results: Results) -> Iterator[RenderableType]:
    """Everything that a benchmark says, from the sets to the recommendation."""
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


def recommendation_text(advice: Recommendation) -> Text:
    """The setting that the benchmark recommends, and why."""
    return Text.assemble("Recommended: ", (advice.name, "bold"), f" - {advice.reason}.")


def _set(summary: SetSummary) -> Iterator[RenderableType]:
    yield Text.assemble((summary.label, "bold"), (f"  {set_facts(summary)}", MUTED))
    if summary.n_prompts:
        table = _table(COLUMNS)
        best = best_fixed(summary)
        for policy in summary.policies:
            styles = {
                "of plain": _style(policy),
                "same text": "" if policy.parts_at is None else "yellow",
            }
            cells = zip(COLUMNS, policy_row(policy, COLUMNS), strict=True)
            texts = (Text(text, style=styles.get(title, "")) for title, text in cells)
            table.add_row(*texts, style="bold" if policy is best else "")
        yield table
    for prompt, reason in summary.failures:
        yield Text(f"{prompt} failed: {reason}", style=BAD)
    for comparison in auto_against_best(summary):
        if comparison.ratio is not None:
            yield Text(against_line(comparison))


def set_facts(summary: SetSummary) -> str:
    """How many prompts count, how fast plain decoding was, and what is noise."""
    facts = [fmt.counted(summary.n_prompts, "prompt"), f"plain {fmt.rate(summary.plain_tps)} tok/s"]
    if summary.plain_spread is not None:
        facts.append(f"two plain runs differ by {100 * summary.plain_spread:.1f} %")
    if summary.n_loops:
        facts.append(f"{summary.n_loops} end in a loop (excluded)")
    if summary.n_short:
        facts.append(f"{summary.n_short} too short to time")
    return " · ".join(facts)


def against_line(comparison: AutoAgainstBest) -> str:
    """How fast `auto` is beside the best fixed length of its set."""
    return (
        f"best fixed draft length in hindsight: {comparison.best_fixed}; {comparison.auto} reaches "
        f"{ratio(comparison.ratio)} of its speed{interval(comparison.interval, ' ({})')}"
    )


def ratio(value: float | None) -> str:
    """A ratio with three digits after the point."""
    return fmt.NO_VALUE if value is None else f"{value:.3f}"


def interval(ends: tuple[float, float] | None, form: str = "{}") -> str:
    """Both ends of an interval, nothing where there is none."""
    return "" if ends is None else form.format(f"{ends[0]:.2f} to {ends[1]:.2f}")


def policy_row(policy: PolicySummary, titles: Sequence[str]) -> tuple[str, ...]:
    """What a policy did, in the columns of these titles."""
    return tuple(_CELLS[title](policy) for title in titles)


def _worst(policy: PolicySummary) -> str:
    worst = policy.worst
    return "" if worst is None else f"{worst.ratio:.2f} {worst.prompt}"


def _accepted(policy: PolicySummary) -> str:
    """The share of accepted tokens, and of how many."""
    if not policy.has_drafts:
        return "no drafts"
    return f"{fmt.percent(policy.acceptance)} of {fmt.count(policy.n_verified)}"


def _same_text(policy: PolicySummary) -> str:
    """How many runs gave the text of plain decoding, and from which token on others differ."""
    same = f"{policy.n_same} of {policy.n_runs}"
    return same if policy.parts_at is None else f"{same}, from token {policy.parts_at}"


def _sources(policy: PolicySummary) -> str:
    """The acceptance of every predictor of a policy, nothing where there is only one."""
    if len(policy.by_source) < 2:
        return ""
    shares = {name: fmt.share(right, n) for name, (n, right) in policy.by_source.items()}
    return ", ".join(f"{name} {fmt.percent(value)}" for name, value in shares.items())


_CELLS: Mapping[str, Callable[[PolicySummary], str]] = {
    "policy": lambda policy: policy.policy,
    "of plain": lambda policy: ratio(policy.mean),
    "95 %": lambda policy: interval(policy.interval),
    "worst prompt": _worst,
    "with loops": lambda policy: ratio(policy.mean_of_all),
    "accepted": _accepted,
    "by source": _sources,
    "per round": lambda policy: (
        fmt.NO_VALUE if policy.tokens_per_round is None else f"{policy.tokens_per_round:.2f}"
    ),
    "same text": _same_text,
}


def _style(policy: PolicySummary) -> str:
    """The colour of a gain or a loss; none where it may be noise."""
    mean = policy.possible
    if mean is None or 0.98 < mean < 1.02:
        return ""
    return GOOD if mean > 1 else BAD


def _overall(summaries: Sequence[SetSummary], policies: Sequence[str]) -> Iterator[RenderableType]:
    yield Text("Geometric mean over all sets", style="bold")
    table = _table(overall_titles(summaries))
    for row in overall_rows(summaries, policies):
        table.add_row(*row)
    yield table
    for auto, value in against_overall(summaries):
        yield Text(f"{auto} reaches {ratio(value)} of the speed of each set's best fixed length")


def overall_titles(summaries: Sequence[SetSummary]) -> tuple[str, ...]:
    """The columns of the table of all sets."""
    return ("policy", "of plain", *(summary.label for summary in summaries), "with loops")


def overall_rows(
    summaries: Sequence[SetSummary], policies: Sequence[str]
) -> Iterator[tuple[str, ...]]:
    """Each policy over all sets, in each, and with the prompts that end in a loop."""
    for policy in policies:
        found = [summary.find(policy) for summary in summaries]
        yield (
            policy,
            ratio(overall_of(summaries, policy)),
            *(ratio(each.mean if each else None) for each in found),
            ratio(overall(each.mean_of_all if each else None for each in found)),
        )


def against_overall(summaries: Sequence[SetSummary]) -> tuple[tuple[str, float | None], ...]:
    """Every automatic policy with its mean over sets of its ratio to the best fixed one."""
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
    yield Text("Prompts on which auto is below 0.95 of plain decoding", style="bold")
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
    yield Text("Time of a round by the tokens in its batch", style="bold")
    table = _table(("tokens", *(str(point.n_rows) for point in points)))
    table.add_row("ms", *(f"{1e3 * point.seconds:.1f}" for point in points))
    table.add_row("decode steps", *(f"{point.steps:.2f}" for point in points))
    yield table


def _table(titles: Sequence[str]) -> Table:
    numbers = [title for title in titles if title not in TEXTS]
    return plain_table(titles, numbers=numbers, header_style=MUTED)


def time_left(elapsed_s: float, n_done: int, n_total: int) -> float | None:
    """The seconds that the rest takes at the pace so far, None before there is a pace."""
    return elapsed_s / n_done * (n_total - n_done) if n_done else None


def policy_order(name: str) -> tuple[bool, str, int]:
    """What sorts policies by name, `auto` first and short drafts before long ones."""
    policy = parse_policy(name)
    return not policy.is_auto, f"{policy.predictor}:{policy.controller}", policy.n_draft or 0


def prompt_line(record: PromptRecord) -> str:
    """A prompt's result in one line: its ratio under every policy, or why there is none."""
    where = f"{record.set_name} at {record.temperature:g}  {record.prompt}"
    if record.failure is not None:
        return f"{where}: failed: {record.failure}"
    names = sorted({run.policy for run in record.runs if not run.is_plain}, key=policy_order)
    ratios = " ".join(_ratio(record, name) for name in names)
    reason = exclusion(record)
    return f"{where}: {ratios}" + (f" ({reason}, not in the means)" if reason else "")


def _ratio(record: PromptRecord, policy: str) -> str:
    has_drafts = any(run.n_verified for run in record.runs if run.policy == policy)
    said = f"{policy} {median(pair_ratios(record, policy)):.2f}"
    return said if has_drafts else f"{said} (no drafts)"


class ConsoleProgress:
    """A bar on a terminal, a line for each prompt anywhere.

    It draws between runs only: a thread that redraws would take time from the engine.
    """

    def __init__(self, console: Console, n_runs: int) -> None:
        self._console = console
        self._n_runs = n_runs
        self._n_done = 0
        self._start_s = time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("warming up", total=n_runs)

    def __enter__(self) -> "ConsoleProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def run_done(self, prompt: BenchPrompt, policy: str) -> None:
        self._advance(self._n_done + 1, f"{prompt.set_name} {prompt.name} · {policy}")

    def prompt_done(self, record: PromptRecord, n_done: int) -> None:
        line = f"{prompt_line(record)}{self._left(n_done)}"
        self._console.print(line, markup=False, soft_wrap=True)
        for note in record.notes:
            self._console.print(f"  {note}", markup=False, soft_wrap=True)
        self._advance(n_done, "")

    def _left(self, n_done: int) -> str:
        if self._console.is_terminal:
            return ""
        left_s = time_left(self._elapsed_s(), n_done, self._n_runs)
        return f"  [{fmt.seconds(left_s)} left]"

    def _advance(self, n_done: int, what: str) -> None:
        self._n_done = n_done
        left_s = time_left(self._elapsed_s(), n_done, self._n_runs)
        left = f"about {fmt.seconds(left_s)} left"
        self._bar.update(
            self._task, completed=n_done, description=escape(f"{left}  {what}"), refresh=True
        )

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._start_s
