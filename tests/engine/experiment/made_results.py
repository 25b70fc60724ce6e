"""Results of benchmarks that nobody ran, with speeds chosen so that ratios are round."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.events import GenerationStats
from engine.experiment.records import Facts, PromptRecord, Results, Row, Sample

N_TOKENS = 64


def stats(*, is_plain: bool = False, tps: float = 100.0, **changes: Any) -> GenerationStats:
    """Give the counts of a reply; if it is not plain, drafts explain up to 4 tokens a round."""
    facts: dict[str, Any] = {
        "decode_s": N_TOKENS / tps,
        "n_emitted": N_TOKENS,
        "n_rounds": 64 if is_plain else 16,
        "n_verified": 0 if is_plain else 80,
        "n_accepted": 0 if is_plain else 40,
    }
    return GenerationStats(**facts | changes)


def sample(arm: str, tps: float = 100.0) -> Sample:
    return Sample(arm, stats(is_plain=arm == "plain", tps=tps))


def row(ratios: Mapping[str, float]) -> Row:
    """Give a row in which each arm is so many times as fast as plain decoding."""
    made = [sample("plain")]
    for arm, ratio in ratios.items():
        made += [*[sample(arm, 100.0 * ratio)] * 2, sample("plain")]
    return tuple(made)


def record(
    ratios: Mapping[str, float | Sequence[float]],
    *,
    prompt: str = "one",
    set_name: str = "grounded",
    temperature: float = 0.0,
    **changes: Any,
) -> PromptRecord:
    """Give a record in which the blocks of each arm have these ratios."""
    lists = {arm: [each] if isinstance(each, float) else each for arm, each in ratios.items()}
    n_blocks = min(map(len, lists.values()))
    return PromptRecord(
        set_name,
        prompt,
        temperature,
        n_prompt=100,
        text="A reply.",
        rows=tuple(row({arm: each[n] for arm, each in lists.items()}) for n in range(n_blocks)),
        **changes,
    )


def results(*records: PromptRecord, arms: Sequence[str]) -> Results:
    subject: Facts = {"model": "made.gguf", "n_tokens": 64, "seed": 1}
    started = "2026-01-01T00:00:00+00:00"
    return Results({"system": "Linux"}, subject, tuple(arms), started, records, elapsed_s=60.0)
