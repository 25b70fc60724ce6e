"""Small reports of cache quality, made up figure by figure."""

from collections.abc import Mapping
from dataclasses import replace

from engine.configuration import KVTypes
from engine.memory.kv_cache import bits_of
from engine.quality.records import (
    Answers,
    Breakdown,
    Cost,
    Figure,
    Measurement,
    Report,
    Role,
    Scores,
    Subject,
    TextFacts,
)

N_TOKENS = 10_000
WHOLE = KVTypes("f16", "f16")
Q8 = KVTypes("q8_0", "q8_0")
Q4 = KVTypes("q4_0", "q4_0")


def scores(loss: float = 0.0, n_tokens: int = N_TOKENS, same_top: float | None = None) -> Scores:
    """The scores of a kind whose mean KL is `loss`, and its other figures as they go with it."""
    top = 1 - 2 * loss if same_top is None else same_top
    return Scores(
        n_tokens=n_tokens,
        nll=Figure(2.5 + loss / 2),
        nll_delta=Figure(loss / 2, loss / 4, loss / 1.5),
        kl_mean=Figure(loss, loss / 2, loss * 1.2),
        kl_median=Figure(loss / 4),
        kl_p99=Figure(loss * 10),
        kl_p999=Figure(loss * 30, loss * 20, loss * 40),
        same_top=Figure(max(0.0, top)),
    )


def cost(pair: KVTypes, tps: float, n_ctx: int = 8192) -> Cost:
    """What a kind of 1,024 elements a token takes, at a rate that falls with the depth."""
    nbytes = round(n_ctx * 1024 * sum(bits_of(pair)) / 8)
    return Cost(n_ctx, nbytes, 1 << 20, 20 * tps, 128, tps, 4096, 0.8 * tps)


def measured(
    pair: KVTypes, loss: float = 0.0, tps: float | None = 50.0, role: Role = "candidate"
) -> Measurement:
    """A kind with its loss in nats of mean KL and its rate near the start of the context."""
    return Measurement(
        pair,
        role,
        is_complete=True,
        scores=scores(loss),
        by_position=(Breakdown("0-2k", scores(loss, 6000)), Breakdown("8-16k", scores(loss, 4000))),
        by_text=(
            Breakdown("chat", scores(0.1 * loss, 4000)),
            Breakdown("document", scores(loss, 6000)),
        ),
        needle=(Answers("50 %", 10, 10),),
        cost=None if tps is None else cost(pair, tps),
    )


SUBJECT = Subject(
    model="model.gguf",
    model_identity="0123456789abcdef" * 2,
    texts_digest="ab" * 16,
    build="0.3.36@1",
    device="a CPU",
    n_threads=2,
    n_ctx=8192,
    n_chunk=512,
    reference=WHOLE,
    settings={"flash_attention": "on"},
)


def report(
    kinds: Mapping[KVTypes, float] | None = None,
    rates: Mapping[KVTypes, float | None] | None = None,
    n_tokens: int = N_TOKENS,
) -> Report:
    """A report of an f16 reference at 50 tokens/s, its control, and kinds with their losses."""
    speed = {WHOLE: 50.0, **(rates or {})}
    control = replace(measured(WHOLE, 0.0001, speed[WHOLE]), role="control")
    return Report(
        SUBJECT,
        (TextFacts("a.md", "document", n_tokens),),
        "2026-11-22T18:00:00+00:00",
        (
            measured(WHOLE, 0.0, speed[WHOLE], "reference"),
            control,
            *(measured(pair, loss, speed.get(pair, 50.0)) for pair, loss in (kinds or {}).items()),
        ),
    )


def compared_with_f32(found: Report) -> Report:
    """A report with an f32 reference in the place of its own."""
    kind = KVTypes("f32", "f32")
    whole = [replace(each, kind=kind) for each in found.measurements if each.role != "candidate"]
    subject = replace(found.subject, reference=kind)
    return replace(found, subject=subject, measurements=(*whole, *found.candidates))
