"""What the runs of each prompt set amount to, policy by policy."""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from app.bench.results import BenchRun, PromptRecord
from app.format import share

LEAST_TOKENS = 16
"""A reply that the model ended before is too short to time."""
LOOP_TIMES = 3
LEAST_LOOP = 24
"""Tokens of repetition under which a reply does not count as a loop: lists repeat, too."""
N_RESAMPLES = 2000
CONFIDENCE = 0.95
LEAST_ROUNDS = 8


Exclusion = Literal["loop", "short"]


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
    """The last reason that the rule of the length gave in the last run."""


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


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """What rounds of a size take."""

    n_rows: int
    """Tokens in the batch: the pending one and the draft."""
    seconds: float
    steps: float
    """The same in plain steps."""
    n_rounds: int


def summarise(records: Sequence[PromptRecord], policies: Sequence[str]) -> tuple[SetSummary, ...]:
    """A summary of every set and temperature, in the order in which they came."""
    groups: dict[tuple[str, float], list[PromptRecord]] = defaultdict(list)
    for record in records:
        groups[record.set_name, record.temperature].append(record)
    return tuple(_set_summary(key, group, policies) for key, group in groups.items())


def exclusion(record: PromptRecord) -> Exclusion | None:
    """Why a prompt is left out of the means: its text is useless, or too short to time."""
    if record.is_loop:
        return "loop"
    n_plain = [run.n_tokens for run in record.runs if run.is_plain and run.finish_reason == "end"]
    return "short" if n_plain and min(n_plain) < LEAST_TOKENS else None


def pair_ratios(record: PromptRecord, policy: str) -> list[float]:
    """The speed of each run of a policy over that of the plain run next to it."""
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


def _by_source(runs: Sequence[BenchRun]) -> dict[str, tuple[int, int]]:
    total: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, (verified, accepted) in run.by_source.items():
            before = total.get(name, (0, 0))
            total[name] = before[0] + verified, before[1] + accepted
    return total


def batch_curve(records: Sequence[PromptRecord]) -> tuple[CurvePoint, ...]:
    """The time of a round by the tokens in its batch, the medians of the prompts weighted.

    Sizes with fewer than `LEAST_ROUNDS` rounds are left out; empty without plain rounds.
    """
    medians: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for record in records:
        for batch in record.batches:
            medians[batch.n_rows].append((batch.median_s, batch.n_rounds))
    times = {n_rows: weighted_median(samples) for n_rows, samples in medians.items()}
    plain_s = times.get(1)
    if plain_s is None:
        return ()
    counts = {n_rows: sum(n for _, n in samples) for n_rows, samples in medians.items()}
    return tuple(
        CurvePoint(n_rows, times[n_rows], times[n_rows] / plain_s, counts[n_rows])
        for n_rows in sorted(times)
        if counts[n_rows] >= LEAST_ROUNDS
    )


def weighted_median(samples: Sequence[tuple[float, int]]) -> float:
    """The first value at which half of the weight is reached."""
    half = sum(weight for _, weight in samples) / 2
    reached = 0
    for value, weight in sorted(samples):
        reached += weight
        if reached >= half:
            return value
    raise ValueError("there is no median of nothing")


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """The mean for ratios, under which 2 and 1/2 cancel out; None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None


def median(values: Sequence[float]) -> float | None:
    """The middle value, None of nothing."""
    return statistics.median(values) if values else None


def bootstrap_interval(ratios: Sequence[float]) -> tuple[float, float] | None:
    """The interval in which the geometric mean lies, as far as other prompts are like these.

    The percentile bootstrap (Efron 1979, The Annals of Statistics 7(1)): prompts are drawn with
    replacement, `N_RESAMPLES` times.

    Returns:
        The lower and upper end; None with fewer than two prompts.
    """
    if len(ratios) < 2:
        return None
    rng = random.Random(0)
    logs = [math.log(ratio) for ratio in ratios]
    means = sorted(statistics.fmean(rng.choices(logs, k=len(logs))) for _ in range(N_RESAMPLES))
    cut = (1 - CONFIDENCE) / 2
    low, high = math.floor(cut * N_RESAMPLES), math.ceil((1 - cut) * N_RESAMPLES) - 1
    return math.exp(means[low]), math.exp(means[high])


def ends_in_loop(token_ids: Sequence[int]) -> bool:
    """Whether a reply ends in repeating a period `LOOP_TIMES` times, `LEAST_LOOP` tokens or more.

    Look-up is at its best there, and nobody wants that text.
    """
    for period in range(1, len(token_ids) // LOOP_TIMES + 1):
        n = max(LOOP_TIMES * period, LEAST_LOOP)
        tail = token_ids[-n:]
        if len(tail) == n and all(tail[i] == tail[i - period] for i in range(period, n)):
            return True
    return False
