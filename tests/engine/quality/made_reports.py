"""Reports of made-up figures."""

from engine.quality.records import (
    Answers,
    CacheKind,
    Cost,
    Figure,
    Measurement,
    Part,
    Report,
    Role,
    Scores,
    Subject,
    TextFacts,
)

F16 = CacheKind("f16", "f16")
Q8 = CacheKind("q8_0", "q8_0")
Q8_Q4 = CacheKind("q8_0", "q4_0")


def made_scores(kl: float, n_tokens: int = 9_000) -> Scores:
    """Scores that follow from the mean KL."""
    return Scores(
        n_tokens=n_tokens,
        nll=Figure(2.5 + kl, 2.4, 2.7),
        nll_delta=Figure(kl, kl / 2, kl * 2),
        perplexity_ratio=Figure(1 + kl),
        kl_mean=Figure(kl, kl / 2, kl * 2),
        kl_median=Figure(kl / 2),
        kl_p99=Figure(kl * 10),
        kl_p999=Figure(kl * 50),
        same_top=Figure(1 - min(kl, 1.0), 0.9, 1.0),
    )


def made_measurement(
    kind: CacheKind, kl: float, *, role: Role = "candidate", held: int = 1000, tps: float = 50.0
) -> Measurement:
    """A complete measurement with every part."""
    return Measurement(
        kind,
        role,
        is_complete=True,
        scores=made_scores(kl),
        by_position=(Part("0-2k", made_scores(kl / 2)), Part("2-8k", made_scores(kl * 2))),
        by_text=(Part("chat", made_scores(kl / 2)), Part("document", made_scores(kl * 2))),
        needle=(Answers("10 %", 4, 4), Answers("90 %", 3, 4)),
        reasoning=(Answers("sums", 7, 10),),
        cost=Cost(4096, held * 4096, 1 << 20, 500.0, 512, tps, 3584, tps * 0.8),
    )


def made_report(*candidates: Measurement) -> Report:
    """A report of a made-up model, with q8_0 where no candidates are given."""
    subject = Subject(
        model="made-up.gguf",
        model_identity="0" * 32,
        texts_digest="1" * 32,
        build="0.3.36@1",
        device="a processor",
        n_threads=2,
        n_ctx=4096,
        n_chunk=128,
        reference=F16,
        settings={"flash_attention": "auto"},
    )
    return Report(
        subject,
        (TextFacts("a chat", "chat", 5_000), TextFacts("a paper", "document", 4_000)),
        "2026-01-01T00:00:00+00:00",
        (
            made_measurement(F16, 0.0, role="reference", held=2000),
            made_measurement(F16, 1e-7, role="control", held=2000),
            *(candidates or (made_measurement(Q8, 0.001),)),
        ),
        elapsed_s=12.5,
    )
