"""The statistics of a reply that was made in two parts."""

from dataclasses import replace

from app.chat.tally import added_savings
from engine.events import GenerationStats
from engine.speculation.stats import added_positions, added_sources, speedup_of


def joined_stats(before: GenerationStats, after: GenerationStats) -> GenerationStats:
    """Give the statistics of a whole reply from those of its first and its second part.

    Counts and times are sums, speeds are those of the sums. What stands for one moment is the
    second part's: its prompt, which held the first part, the plain step, and who drafted at the
    end. The wait for the first token is the first part's.
    """
    decode_s = before.decode_s + after.decode_s
    n_emitted = before.n_emitted + after.n_emitted
    saved_s, saved_error_s = added_savings(before, after)
    return replace(
        after,
        n_rounds=before.n_rounds + after.n_rounds,
        n_drafted=before.n_drafted + after.n_drafted,
        n_verified=before.n_verified + after.n_verified,
        n_examined=before.n_examined + after.n_examined,
        n_accepted=before.n_accepted + after.n_accepted,
        n_emitted=n_emitted,
        by_source=added_sources(before.by_source, after.by_source),
        by_position=added_positions(before.by_position, after.by_position),
        n_near_ties=before.n_near_ties + after.n_near_ties,
        n_redecoded=before.n_redecoded + after.n_redecoded,
        prefill_s=before.prefill_s + after.prefill_s,
        first_token_s=before.first_token_s,
        decode_s=decode_s,
        decode_tps=n_emitted / decode_s if decode_s > 0 else None,
        saved_s=saved_s,
        saved_error_s=saved_error_s,
        tokens_per_round=_tokens_per_round(before, after),
        speedup=None if saved_s is None else speedup_of(saved_s, decode_s),
    )


def _tokens_per_round(before: GenerationStats, after: GenerationStats) -> float | None:
    if not before.tokens_per_round or not after.tokens_per_round:
        return after.tokens_per_round or before.tokens_per_round
    n_passes = before.n_emitted / before.tokens_per_round + after.n_emitted / after.tokens_per_round
    return (before.n_emitted + after.n_emitted) / n_passes if n_passes else None
