"""The report of a benchmark for a terminal."""

from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import RenderableType
from rich.text import Text

from app import format as fmt
from app.tables import plain_table
from engine.experiment.gain import PairedGain
from engine.experiment.records import PromptRecord, Results
from engine.experiment.verdict import (
    by_set,
    noise_of,
    recommend,
    samples_of,
    token_s,
    total_gain,
)

MUTED = "dim"
COLUMNS = ("arm", "of plain", "interval", "worst prompt", "accepted", "per round", "same text")
NUMBERS = ("of plain", "accepted", "per round")


def report(results: Results) -> Iterator[RenderableType]:
    """The report of a benchmark, from the prompt sets to the recommendation."""
    arms, records = results.arms, results.prompts
    for (name, temperature), group in by_set(records).items():
        title = (f"\n{name} at temperature {temperature:g}", "bold")
        yield Text.assemble(title, (f"  {_facts(group, arms)}", MUTED))
        if any(record.rows for record in group):
            rows = [_row(group, arm) for arm in arms]
            yield plain_table(COLUMNS, rows, numbers=NUMBERS, header_style=MUTED)
        for record in group:
            if record.failure is not None:
                yield Text(f"{record.prompt} failed: {record.failure}", "red")
    yield Text("\nAll prompts", "bold")
    totals = [(arm, *_gain_cells(total_gain(records, arm))) for arm in arms]
    yield plain_table(COLUMNS[:3], totals, numbers=NUMBERS, header_style=MUTED)
    advice = recommend(records, arms)
    yield Text.assemble("\nRecommended: ", (advice.name, "bold"), f" - {advice.reason}.")


def _facts(records: Sequence[PromptRecord], arms: Sequence[str]) -> str:
    speeds = [1 / token_s(sample.stats) for sample in samples_of(records, "plain")]
    exclusions = [record.excluded for record in records]
    noise = noise_of(records, arms)
    facts = (
        fmt.counted(sum(record.failure is None for record in records), "prompt"),
        f"plain {fmt.rate(median(speeds))} tok/s" if speeds else "",
        "" if noise is None else f"noise {100 * noise:.1f} %",
        f"{exclusions.count('loop')} excluded because of endless repetition"
        if "loop" in exclusions
        else "",
        f"{exclusions.count('short')} excluded because replies are too short"
        if "short" in exclusions
        else "",
    )
    return " · ".join(filter(None, facts))


def _row(records: Sequence[PromptRecord], arm: str) -> tuple[str | Text, ...]:
    samples = samples_of(records, arm)
    n_rounds = sum(each.stats.n_rounds for each in samples)
    n_verified = sum(each.stats.n_verified for each in samples)
    accepted = fmt.percent(fmt.share(sum(each.stats.n_accepted for each in samples), n_verified))
    divergences = [each.diverges_at for each in samples]
    same = f"{divergences.count(None)} of {len(samples)}"
    if first := [each for each in divergences if each is not None]:
        same += f", from token {min(first)}"
    return (
        arm,
        *_gain_cells(total_gain(records, arm)),
        _worst(records, arm),
        f"{accepted} of {fmt.count(n_verified)}" if n_verified else "no drafts",
        f"{sum(each.stats.n_emitted or 0 for each in samples) / max(n_rounds, 1):.2f}",
        same,
    )


def _gain_cells(gain: PairedGain | None) -> tuple[str | Text, str]:
    """Ratio and interval; the ratio has a colour if it is beyond the noise."""
    if gain is None:
        return fmt.NO_VALUE, ""
    style = "green" if gain.is_faster else "red" if gain.reversed.is_faster else ""
    return Text(f"{gain.median:.2f}", style), f"{gain.low:.2f} to {gain.high:.2f}"


def _worst(records: Sequence[PromptRecord], arm: str) -> str:
    gains = [(record.prompt, total_gain([record], arm)) for record in records]
    ratios = [(gain.median, prompt) for prompt, gain in gains if gain is not None]
    return f"{min(ratios)[0]:.2f} {min(ratios)[1]}" if ratios else ""


def prompt_line(record: PromptRecord) -> str:
    """A prompt's result in one line: its ratio with each arm, or why it has none."""
    result = record.failure and f"failed: {record.failure}"
    if record.excluded is not None:
        result = f"excluded: {record.excluded}"
    arms = {sample.arm for row in record.rows for sample in row if not sample.is_plain}
    gains = [(arm, total_gain([record], arm)) for arm in sorted(arms)]
    ratios = " ".join(f"{arm} {gain.median:.2f}" for arm, gain in gains if gain is not None)
    sampled = f"{record.set_name} at temperature {record.temperature:g}"
    return f"{sampled}  {record.prompt}: {result or ratios}"
