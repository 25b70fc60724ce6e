"""What the runs of each prompt set amount to, policy by policy."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from app.bench.numbers import bootstrap_interval, geometric_mean, median
from app.bench.records import PromptRecord, Run
from app.format import share

Exclusion = Literal["loop", "short"]
LEAST_TOKENS = 16
"""A reply that the model ended before is too short to time."""


@dataclass(frozen=True, slots=True)
class PromptRatio:
    """How a policy did on one prompt."""

    prompt: str
    ratio: float
    """Median over the pairs of its speed over that of the plain run beside it."""
    pairs: tuple[float, ...]
    excluded: Exclusion | None
    n_verified: int
    """Drafted tokens in the batches of all its runs."""
    n_same: int
    """Runs whose text is that of the plain run."""
    parts_at: int | None
    """First token that differs in any run, None where none does."""
    last_reason: str
    """What the rule of the length said at the end of the last run."""


@dataclass(frozen=True, slots=True)
class PolicySummary:
    """How a policy did on a prompt set; excluded prompts count in `mean_of_all` only."""

    policy: str
    ratios: tuple[PromptRatio, ...]
    mean: float | None
    """Geometric mean of the prompts' ratios."""
    interval: tuple[float, float] | None
    """95 % of it, over prompts drawn with replacement."""
    mean_of_all: float | None
    n_verified: int
    acceptance: float | None
    """Accepted of verified tokens."""
    tokens_per_round: float | None
    n_same: int
    n_runs: int
    by_source: dict[str, tuple[int, int]]
    """Verified and accepted tokens of each predictor."""

    @property
    def has_drafts(self) -> bool:
        """Whether anything was drafted and verified; else all it did was decode plainly."""
        return self.n_verified > 0

    @property
    def possible(self) -> float | None:
        """As much of `mean` as drafts can have done; None without a mean.

        It is 1 where nothing was drafted, and no more than the tokens that a round gave.
        """
        if self.mean is None or not self.has_drafts or self.tokens_per_round is None:
            return None if self.mean is None else 1.0
        return min(self.mean, self.tokens_per_round)

    @property
    def counted(self) -> tuple[PromptRatio, ...]:
        return tuple(ratio for ratio in self.ratios if ratio.excluded is None)

    @property
    def worst(self) -> PromptRatio | None:
        """The slowest prompt that counts."""
        return min(self.counted, key=lambda each: each.ratio, default=None)

    @property
    def parts_at(self) -> int | None:
        """First token in which any run differs from plain decoding."""
        return min(
            (each.parts_at for each in self.ratios if each.parts_at is not None), default=None
        )


@dataclass(frozen=True, slots=True)
class SetSummary:
    """A prompt set at one temperature."""

    set_name: str
    temperature: float
    policies: tuple[PolicySummary, ...]
    """In the order of the policies."""
    plain_tps: float | None
    """Median speed of plain decoding."""
    plain_spread: float | None
    """Median relative difference of a plain run to the next one: what is noise here."""
    n_prompts: int
    n_loops: int
    n_short: int
    failures: tuple[tuple[str, str], ...]
    """Prompt and reason of those without runs."""

    @property
    def label(self) -> str:
        return f"{self.set_name} at {self.temperature:g}"

    def find(self, policy: str) -> PolicySummary | None:
        return next((each for each in self.policies if each.policy == policy), None)


def summarise(records: Sequence[PromptRecord], policies: Sequence[str]) -> tuple[SetSummary, ...]:
    """Give a summary of every set and temperature, in the order in which they came."""
    groups: dict[tuple[str, float], list[PromptRecord]] = defaultdict(list)
    for record in records:
        groups[record.set_name, record.temperature].append(record)
    return tuple(_set_summary(key, group, policies) for key, group in groups.items())


def exclusion(record: PromptRecord) -> Exclusion | None:
    """Give why a prompt is left out of the means: its text is useless, or too short to time."""
    if record.is_loop:
        return "loop"
    n_plain = [run.n_tokens for run in record.runs if run.is_plain and run.finish_reason == "end"]
    return "short" if n_plain and min(n_plain) < LEAST_TOKENS else None


def pair_ratios(record: PromptRecord, policy: str) -> list[float]:
    """Give the speed of each run of a policy over that of the plain run next to it."""
    plain = {(run.pair, run.group): run.decode_tps for run in record.runs if run.is_plain}
    return [
        run.decode_tps / plain[run.pair, run.group] for run in record.runs if run.policy == policy
    ]


def _set_summary(
    key: tuple[str, float], records: Sequence[PromptRecord], policies: Sequence[str]
) -> SetSummary:
    measured = [record for record in records if record.failure is None]
    exclusions = [exclusion(record) for record in measured]
    plain = [run for record in measured for run in record.runs if run.is_plain]
    return SetSummary(
        *key,
        policies=tuple(_policy_summary(measured, policy) for policy in policies),
        plain_tps=median([run.decode_tps for run in plain]),
        plain_spread=median([each for record in measured for each in _plain_spreads(record)]),
        n_prompts=len(measured),
        n_loops=exclusions.count("loop"),
        n_short=exclusions.count("short"),
        failures=tuple((each.prompt, each.failure) for each in records if each.failure is not None),
    )


def _policy_summary(records: Sequence[PromptRecord], policy: str) -> PolicySummary:
    ratios = tuple(
        _prompt_ratio(record, policy, pairs)
        for record in records
        if (pairs := pair_ratios(record, policy))
    )
    counted = [each.ratio for each in ratios if each.excluded is None]
    runs = [run for record in records for run in record.runs if run.policy == policy]
    return PolicySummary(
        policy=policy,
        ratios=ratios,
        mean=geometric_mean(counted),
        interval=bootstrap_interval(counted),
        mean_of_all=geometric_mean([each.ratio for each in ratios]),
        n_verified=sum(run.n_verified for run in runs),
        acceptance=share(sum(run.n_accepted for run in runs), sum(run.n_verified for run in runs)),
        tokens_per_round=share(
            sum(run.n_emitted for run in runs), sum(run.n_rounds for run in runs)
        ),
        n_same=sum(run.parts_at is None for run in runs),
        n_runs=len(runs),
        by_source=_by_source(runs),
    )


def _prompt_ratio(record: PromptRecord, policy: str, pairs: Sequence[float]) -> PromptRatio:
    runs = [run for run in record.runs if run.policy == policy]
    parted = [run.parts_at for run in runs]
    middle = median(pairs)
    assert middle is not None
    return PromptRatio(
        prompt=record.prompt,
        ratio=middle,
        pairs=tuple(pairs),
        excluded=exclusion(record),
        n_verified=sum(run.n_verified for run in runs),
        n_same=parted.count(None),
        parts_at=min((where for where in parted if where is not None), default=None),
        last_reason=runs[-1].last_reason,
    )


def _plain_spreads(record: PromptRecord) -> Iterable[float]:
    speeds = [run.decode_tps for run in record.runs if run.is_plain]
    for one, two in pairwise(speeds):
        yield max(one, two) / min(one, two) - 1


def _by_source(runs: Sequence[Run]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, (verified, accepted) in run.by_source.items():
            before = total.get(name, (0, 0))
            total[name] = before[0] + verified, before[1] + accepted
    return total
