"""Reports of made-up figures with every part, for what shows and keeps them."""

from dataclasses import replace

from engine.configuration import KVTypes
from engine.quality.records import Answers, Breakdown, Cost, Measurement, Report, Role, TextFacts
from tests.engine.policy import reports
from tests.engine.policy.reports import measured, scores

F16 = KVTypes("f16", "f16")
Q8 = KVTypes("q8_0", "q8_0")
Q8_Q4 = KVTypes("q8_0", "q4_0")


def made_measurement(
    kind: KVTypes, kl: float, *, role: Role = "candidate", held: int = 1000, tps: float = 50.0
) -> Measurement:
    """A complete measurement with a mean KL; early rows and chats lose less than late ones."""
    half, twice = scores(kl / 2, 9_000), scores(kl * 2, 9_000)
    return replace(
        measured(F16, kl, tps, role),
        kind=kind,
        scores=scores(kl, 9_000),
        by_position=(Breakdown("0-2k", half), Breakdown("2-8k", twice)),
        by_text=(Breakdown("chat", half), Breakdown("document", twice)),
        needle=(Answers("10 %", 4, 4), Answers("90 %", 3, 4)),
        cost=Cost(4096, held * 4096, 1 << 20, 500.0, 512, tps, 3584, tps * 0.8),
    )


def made_report(*candidates: Measurement) -> Report:
    """A report of a made-up model, with q8_0 where no candidates are given."""
    return replace(
        reports.report(),
        subject=replace(reports.SUBJECT, model="made-up.gguf", n_ctx=4096, n_chunk=128),
        texts=(TextFacts("a chat", "chat", 5_000), TextFacts("a paper", "document", 4_000)),
        measurements=(
            made_measurement(F16, 0.0, role="reference", held=2000),
            made_measurement(F16, 1e-7, role="control", held=2000),
            *(candidates or (made_measurement(Q8, 0.001),)),
        ),
        elapsed_s=12.5,
    )
