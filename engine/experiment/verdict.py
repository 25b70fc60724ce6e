"""Decide which arms are faster than plain decoding, and which setting to recommend."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median

from engine.events import GenerationStats
from engine.experiment.arm import parse_arm
from engine.experiment.gain import N_DECIDING, ORDER, Block, PairedGain, gain_of
from engine.experiment.records import PromptRecord, Sample

NOISY = 0.1
"""Noise from which the machine was not idle enough to recommend anything."""
MAX_LOSS = 0.98
"""A setting that is slower than this on a prompt set is not recommended."""
AUTO_MARGIN = 0.03
"""Share by which a recommended `auto` may be slower than a fixed length: the fixed length was
chosen on the prompts that it is measured on, and `auto` adapts to others."""


def token_s(stats: GenerationStats) -> float:
    """Seconds per token after the prefill."""
    return stats.decode_s / (stats.n_emitted or 1)


def block_of(replies: Sequence[GenerationStats]) -> Block:
    """The block of four replies to one prompt: A, B, B, A."""
    a_first, b_first, b_last, a_last = map(token_s, replies)
    low, high = explained(replies[::3], replies[1:3])
    return Block(a_first, b_first, b_last, a_last, low, high)


def explained(
    first: Sequence[GenerationStats], second: Sequence[GenerationStats]
) -> tuple[float, float]:
    """Lowest and highest speed of the second arm over the first that their drafts explain.

    Drafts gain at most the tokens of a round, and without drafts two arms are equal.
    """
    low_first, high_first = _against_plain(first)
    low_second, high_second = _against_plain(second)
    return low_second / high_first, high_second / low_first if low_first else inf


def _against_plain(replies: Sequence[GenerationStats]) -> tuple[float, float]:
    """Lowest and highest speed against plain decoding; the lowest is 0 where nothing bounds it."""
    drafted = [each for each in replies if each.n_verified]
    if not drafted:
        return 1.0, 1.0
    lows = [
        1.0 + (each.saved_s - each.saved_error_s) / each.decode_s
        if each.saved_s is not None and each.saved_error_s is not None
        else 0.0
        for each in drafted
    ]
    high = max(each.tokens_per_round or 1.0 for each in drafted)
    return min(max(min(lows), 0.0), 1.0), max(high, 1.0)


def blocks_of(records: Iterable[PromptRecord], arm: str) -> list[Block]:
    """The blocks of an arm on the prompts that count."""
    found = []
    for row in (row for record in counted(records) for row in record.rows):
        names = [sample.arm for sample in row]
        if arm in names:
            start = names.index(arm) - 1
            found.append(block_of([sample.stats for sample in row[start : start + len(ORDER)]]))
    return found


@dataclass(frozen=True, slots=True)
class Recommendation:
    """An arm, or None for plain decoding, and why."""

    arm: str | None
    reason: str
    is_open: bool = False
    """Whether the measurement does not decide, not even for plain decoding."""

    @property
    def name(self) -> str:
        """The recommended setting, in words."""
        if self.is_open:
            return "nothing yet"
        return "no speculation" if self.arm is None else self.arm


def counted(records: Iterable[PromptRecord]) -> list[PromptRecord]:
    """Records whose replies neither failed, nor repeat themselves, nor are too short."""
    return [each for each in records if each.failure is None and each.excluded is None]


def samples_of(records: Iterable[PromptRecord], arm: str) -> list[Sample]:
    """The replies of an arm, those that do not count too."""
    samples = (sample for record in records for row in record.rows for sample in row)
    return [sample for sample in samples if sample.arm == arm]


def total_gain(records: Iterable[PromptRecord], arm: str) -> PairedGain | None:
    """The gain of an arm over all prompts that count."""
    return gain_of(blocks_of(records, arm))


def by_set(records: Iterable[PromptRecord]) -> dict[tuple[str, float], list[PromptRecord]]:
    """The records of each prompt set and temperature, in the order they were measured."""
    groups: dict[tuple[str, float], list[PromptRecord]] = defaultdict(list)
    for record in records:
        groups[record.set_name, record.temperature].append(record)
    return groups


def noise_of(records: Sequence[PromptRecord], arms: Sequence[str]) -> float | None:
    """The median over the arms; None without a prompt that counts."""
    gains = [gain for arm in arms if (gain := total_gain(records, arm)) is not None]
    return median(gain.noise for gain in gains) if gains else None


def recommend(records: Sequence[PromptRecord], arms: Sequence[str]) -> Recommendation:
    """What to set on this machine for texts such as these; nothing on a noisy machine.

    `auto` unless it loses on a prompt set or a fixed length is faster than it. A fixed length has
    to be faster than plain decoding beyond the noise, and to lose on no set. Else no speculation.
    """
    totals = {arm: total_gain(records, arm) for arm in arms}
    gains = {arm: gain for arm, gain in totals.items() if gain is not None}
    if (obstacle := _obstacle(records, gains)) is not None:
        return Recommendation(None, obstacle, is_open=True)
    by_arm = {
        arm: [gain for group in by_set(records).values() if (gain := total_gain(group, arm))]
        for arm in gains
    }
    safe = {
        arm: gain.median
        for arm, gain in gains.items()
        if all(of_set.median >= MAX_LOSS for of_set in by_arm[arm])
    }
    autos = {arm for arm in safe if parse_arm(arm).is_auto}
    clear = {
        arm
        for arm in safe
        if arm not in autos and any(gain.is_faster for gain in (gains[arm], *by_arm[arm]))
    }
    automatic = max(autos, key=safe.__getitem__, default=None)
    fixed = max(clear, key=safe.__getitem__, default=None)
    if fixed is not None:
        rival = 0.0 if automatic is None else safe[automatic]
        if safe[fixed] * (1 - AUTO_MARGIN) > rival:
            return Recommendation(
                fixed, f"{_ratio(fixed, gains)}, and is not slower on any prompt set"
            )
    if automatic is not None:
        return Recommendation(automatic, f"{_ratio(automatic, gains)}, and adapts to other texts")
    best = max(gains, key=lambda name: gains[name].median)
    return Recommendation(
        None,
        "no setting has a clear gain without being slower on at least one prompt set; the best is: "
        f"{_ratio(best, gains)}",
    )


def _obstacle(records: Sequence[PromptRecord], gains: Mapping[str, PairedGain]) -> str | None:
    """Why nothing can be concluded; None if something can."""
    noise = noise_of(records, tuple(gains))
    if noise is None:
        return (
            "no prompt can be used: every reply failed, repeated itself endlessly or was too short"
        )
    samples = [sample for arm in gains for sample in samples_of(counted(records), arm)]
    if not any(sample.stats.n_verified for sample in samples):
        return "no predictor drafted anything on these prompts, so any difference is noise"
    if noise >= NOISY:
        return (
            f"two runs with the same settings differ by {noise:.0%}, so other programs probably "
            "used this machine: measure again when it is idle, or with more --blocks"
        )
    n_blocks = min(gain.n_blocks for gain in gains.values())
    if n_blocks < N_DECIDING:
        return (
            f"only {n_blocks} of the {N_DECIDING} blocks needed for a verdict were measured: "
            "raise --prompts or --blocks"
        )
    return None


def _ratio(arm: str, gains: Mapping[str, PairedGain]) -> str:
    gain = gains[arm]
    return (
        f"{arm} decodes {gain.median:.2f} times as fast as plain decoding "
        f"({gain.low:.2f} to {gain.high:.2f} in {gain.n_blocks} blocks)"
    )
