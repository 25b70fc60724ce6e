import numpy as np
import pytest

from engine.configuration import SamplingSettings, Verification
from engine.sampling import Sampler
from engine.speculation.verify import DrawnDraft, draw_draft

LOGITS = np.random.default_rng(2).normal(size=50).astype(np.float32)
WARM = SamplingSettings(temperature=1.0, top_k=20)


def made(verification: Verification, at: int = 9, settings: SamplingSettings = WARM) -> DrawnDraft:
    return draw_draft(
        LOGITS,
        Sampler(settings, seed=4),
        [1, 2, 3],
        round_start=at - 1,
        position=at,
        verification=verification,
    )


def test_a_coupled_guess_is_what_the_target_would_draw_from_the_same_logits() -> None:
    sampler = Sampler(WARM, seed=4)
    for at in range(40):
        assert made("coupled", at) == DrawnDraft(sampler.sample(LOGITS, [1, 2, 3], at), None)


@pytest.mark.parametrize("verification", ["rejection"])
def test_a_guess_to_be_rejected_carries_the_filtered_law_it_was_drawn_from(
    verification: Verification,
) -> None:
    drawn = [made(verification, at) for at in range(300)]
    law = drawn[0].law
    assert law is not None
    assert law.tokens.size == 20
    assert set(law.tokens.tolist()) >= {one.token for one in drawn}
    assert len({one.token for one in drawn}) > 10
    shared = sum(one.token == made("coupled", at).token for at, one in enumerate(drawn))
    assert shared < 100, "it shares no noise with the target"


def test_at_temperature_zero_every_guess_is_the_likeliest_token() -> None:
    for verification in ("coupled", "match", "rejection", "block"):
        assert made(verification, settings=SamplingSettings()).token == int(LOGITS.argmax())
