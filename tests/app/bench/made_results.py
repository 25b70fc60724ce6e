"""Results of benchmarks that nobody ran, with speeds chosen so that ratios are round."""

from collections.abc import Mapping, Sequence

from app.bench.results import (
    PLAIN,
    BatchCost,
    BenchMachine,
    BenchRun,
    BenchSubject,
    PromptRecord,
    Results,
)

MACHINE = BenchMachine(
    "Linux", "A processor", 2, 8 << 30, (), "llama-cpp-python 0", "0.1.0", "3.11"
)
PLAIN_TPS = 100.0


def run(
    policy: str,
    tps: float,
    *,
    pair: int = 0,
    group: int = 0,
    n_tokens: int = 64,
    reason: str = "length",
    parts_at: int | None = None,
    verified: int = 40,
    accepted: int = 20,
) -> BenchRun:
    return BenchRun(
        policy=policy,
        pair=pair,
        group=group,
        seed=1 + pair,
        decode_tps=tps,
        n_tokens=n_tokens,
        finish_reason=reason,
        n_rounds=32,
        n_verified=0 if policy == PLAIN else verified,
        n_accepted=0 if policy == PLAIN else accepted,
        n_emitted=n_tokens,
        parts_at=parts_at,
        parts_as="" if parts_at is None else "<b>else</b>",
        by_source={} if policy == PLAIN else {"lookup": (verified, accepted)},
    )


def record(
    ratios: Mapping[str, Sequence[float]],
    *,
    prompt: str = "one",
    set_name: str = "grounded",
    temperature: float = 0.0,
    is_loop: bool = False,
    text: str = "A reply.",
    n_tokens: int = 64,
    reason: str = "length",
) -> PromptRecord:
    """Give a record in which each policy has these ratios to plain, pair by pair."""
    runs: list[BenchRun] = []
    for group, (policy, values) in enumerate(ratios.items()):
        for pair, ratio in enumerate(values):
            for name, tps in ((PLAIN, PLAIN_TPS), (policy, PLAIN_TPS * ratio)):
                made = run(name, tps, pair=pair, group=group, n_tokens=n_tokens, reason=reason)
                runs.append(made)
    return PromptRecord(
        set_name,
        prompt,
        temperature,
        n_prompt=100,
        is_loop=is_loop,
        text=text,
        runs=tuple(runs),
        batches=(BatchCost(1, 60, 0.01), BatchCost(3, 20, 0.015), BatchCost(5, 12, 0.022)),
    )


def results(*records: PromptRecord, policies: Sequence[str]) -> Results:
    subject = BenchSubject(
        model="made.gguf", model_bytes=1000, file_type="Q4_1", n_vocab=49152, n_ctx=2048,
        n_threads=2, draft=None, draft_bytes=None, policies=tuple(policies), n_pairs=1,
        n_tokens=64, seed=1, verification="coupled",
    )  # fmt: skip
    return Results(MACHINE, subject, "2026-01-01T00:00:00+00:00", records, elapsed_s=60.0)
