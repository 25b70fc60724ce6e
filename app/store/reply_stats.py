"""A reply's statistics as the database keeps them, read back as the engine's own value."""

from collections.abc import Mapping
from dataclasses import fields

from app.store.records import StoredMessage
from engine.events import GenerationStats, PositionCounts, SourceCounts

COUNTS = (
    "n_prompt", "n_reused", "n_rounds", "n_drafted", "n_verified", "n_examined", "n_accepted",
    "n_emitted",
)  # fmt: skip
"""What every kvchat kept."""
TIMES = (
    "prefill_s", "first_token_s", "decode_s", "decode_tps", "plain_step_s", "plain_spread",
    "saved_s", "saved_error_s", "tokens_per_round", "speedup",
)  # fmt: skip
OF_SOURCE = tuple(field.name for field in fields(SourceCounts))
OF_POSITION = tuple(field.name for field in fields(PositionCounts))


def stats_of(message: StoredMessage) -> GenerationStats | None:
    """Give what was measured of a reply, None where nothing was kept.

    An older kvchat kept fewer figures: a figure that it did not keep is as one never measured, and
    no count is made up. None too where the counts themselves are missing.
    """
    kept = message.stats
    if kept is None or any(_count(kept.get(name)) is None for name in COUNTS):
        return None
    counts = {name: _count(kept[name]) or 0 for name in COUNTS}
    times = {name: _number(kept.get(name)) for name in TIMES}
    return GenerationStats(
        n_prompt=counts["n_prompt"],
        n_reused=counts["n_reused"],
        n_rounds=counts["n_rounds"],
        n_drafted=counts["n_drafted"],
        n_verified=counts["n_verified"],
        n_examined=counts["n_examined"],
        n_accepted=counts["n_accepted"],
        n_emitted=counts["n_emitted"],
        by_source=_sources(kept.get("by_source")),
        by_position=_positions(kept.get("by_position")),
        n_near_ties=_count(kept.get("n_near_ties")) or 0,
        n_redecoded=_count(kept.get("n_redecoded")) or 0,
        prefill_s=times["prefill_s"] or 0.0,
        first_token_s=times["first_token_s"],
        decode_s=times["decode_s"] or 0.0,
        decode_tps=times["decode_tps"],
        plain_step_s=times["plain_step_s"],
        plain_spread=times["plain_spread"],
        saved_s=times["saved_s"],
        saved_error_s=times["saved_error_s"],
        tokens_per_round=times["tokens_per_round"],
        speedup=times["speedup"],
        predictor=message.predictor,
        controller=message.controller,
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _sources(kept: object) -> dict[str, SourceCounts]:
    if not isinstance(kept, Mapping):
        return {}
    counts = {str(name): _named(each, OF_SOURCE) for name, each in kept.items()}
    return {name: SourceCounts(**each) for name, each in counts.items() if each}


def _positions(kept: object) -> tuple[PositionCounts, ...]:
    if not isinstance(kept, list | tuple):
        return ()
    return tuple(PositionCounts(**_named(each, OF_POSITION)) for each in kept)


def _named(kept: object, names: tuple[str, ...]) -> dict[str, int]:
    if not isinstance(kept, Mapping):
        return {}
    found = {name: _count(kept.get(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}
