"""Results of benchmarks that nobody ran, with speeds chosen so that ratios are round."""

from collections.abc import Mapping, Sequence
from typing import Any

from engine.experiment.records import (
    BatchTime,
    MachineFacts,
    PromptRecord,
    Results,
    Row,
    Sample,
    Subject,
)

MACHINE = MachineFacts("Linux", "A processor", 2, 8 << 30, (), "llama-cpp-python 0", "0.1.0", "3")
N_TOKENS = 64


def sample(arm: str, tps: float = 100.0, **changes: Any) -> Sample:
    """Give a reply of an arm; if it is not plain, its drafts can explain up to 4 tokens a round."""
    is_plain = arm == "plain"
    facts: dict[str, Any] = {
        "n_tokens": N_TOKENS,
        "finish_reason": "length",
        "decode_s": N_TOKENS / tps,
        "n_emitted": N_TOKENS,
        "n_rounds": 64 if is_plain else 16,
        "n_verified": 0 if is_plain else 80,
        "n_accepted": 0 if is_plain else 40,
    }
    return Sample(arm, **facts | changes)


def row(ratios: Mapping[str, float], **changes: Any) -> Row:
    """Give a row in which each arm is so many times as fast as plain decoding."""
    made = [sample("plain")]
    for arm, ratio in ratios.items():
        made += [*[sample(arm, 100.0 * ratio, **changes)] * 2, sample("plain")]
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
        batches=(BatchTime(1, 60, 0.01), BatchTime(3, 20, 0.015), BatchTime(5, 12, 0.022)),
        **changes,
    )


def results(*records: PromptRecord, arms: Sequence[str]) -> Results:
    subject = Subject(
        model="made.gguf", model_bytes=1000, file_type="Q4_1", n_ctx=2048, n_threads=2, draft=None,
        draft_bytes=None, arms=tuple(arms), n_blocks=1, n_tokens=64, seed=1, verification="coupled",
    )  # fmt: skip
    return Results(MACHINE, subject, "2026-01-01T00:00:00+00:00", records, elapsed_s=60.0)
