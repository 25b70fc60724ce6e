"""The statistics of a reply that was made in two parts."""

from dataclasses import replace
from itertools import zip_longest

from engine.events import GenerationStats, PositionCounts, SourceCounts


def joined_stats(before: GenerationStats, after: GenerationStats) -> GenerationStats:
    """Give the statistics of a whole reply from those of its first and its second part.

    Counts and times are sums, speeds are those of the sums. What stands for one moment is the
    second part's: its prompt, which held the first part, the plain step, and who drafted at the
    end. The wait for the first token is the first part's.
    """
    decode_s = before.decode_s + after.decode_s
    n_emitted = before.n_emitted + after.n_emitted
    return replace(
        after,
        n_rounds=before.n_rounds + after.n_rounds,
        n_drafted=before.n_drafted + after.n_drafted,
        n_verified=before.n_verified + after.n_verified,
        n_examined=before.n_examined + after.n_examined,
        n_accepted=before.n_accepted + after.n_accepted,
        n_emitted=n_emitted,
        by_source=_sources(before.by_source, after.by_source),
        by_position=_positions(before.by_position, after.by_position),
        n_near_ties=before.n_near_ties + after.n_near_ties,
        n_redecoded=before.n_redecoded + after.n_redecoded,
        prefill_s=before.prefill_s + after.prefill_s,
        first_token_s=before.first_token_s,
        decode_s=decode_s,
        decode_tps=n_emitted / decode_s if decode_s > 0 else None,
        saved_s=_sum(before.saved_s, after.saved_s),
        tokens_per_round=_tokens_per_round(before, after),
        speedup=_speedup(before, after),
    )


def _sum(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before + after


def _tokens_per_round(before: GenerationStats, after: GenerationStats) -> float | None:
    if not before.tokens_per_round or not after.tokens_per_round:
        return after.tokens_per_round or before.tokens_per_round
    n_passes = before.n_emitted / before.tokens_per_round + after.n_emitted / after.tokens_per_round
    return (before.n_emitted + after.n_emitted) / n_passes if n_passes else None


def _speedup(before: GenerationStats, after: GenerationStats) -> float | None:
    """Give the time of plain steps, which is speedup times decoding time, over that of decoding."""
    decode_s = before.decode_s + after.decode_s
    if before.speedup is None or after.speedup is None or decode_s <= 0:
        return None
    return (before.speedup * before.decode_s + after.speedup * after.decode_s) / decode_s


def _sources(
    before: dict[str, SourceCounts], after: dict[str, SourceCounts]
) -> dict[str, SourceCounts]:
    names = [*before, *(name for name in after if name not in before)]
    empty = SourceCounts()
    pairs = {name: (before.get(name, empty), after.get(name, empty)) for name in names}
    return {
        name: SourceCounts(
            n_drafted=first.n_drafted + second.n_drafted,
            n_verified=first.n_verified + second.n_verified,
            n_examined=first.n_examined + second.n_examined,
            n_accepted=first.n_accepted + second.n_accepted,
            n_rounds=first.n_rounds + second.n_rounds,
        )
        for name, (first, second) in pairs.items()
    }


def _positions(
    before: tuple[PositionCounts, ...], after: tuple[PositionCounts, ...]
) -> tuple[PositionCounts, ...]:
    return tuple(
        PositionCounts(
            n_examined=first.n_examined + second.n_examined,
            n_accepted=first.n_accepted + second.n_accepted,
        )
        for first, second in zip_longest(before, after, fillvalue=PositionCounts())
    )
