"""What a comparison shows."""

from dataclasses import replace

import pytest

from app.render.compare import figure_lines, verdict_lines
from app.render.lines import plain, width_of
from engine.configuration import SamplingSettings, SpeculationSettings, Verification
from engine.events import CommittedToken, Finished, TokenKind, TokensCommitted
from engine.experiment.arm import PLAIN, Arm, parse_arm
from engine.experiment.comparison import Comparison, ReplyBlock
from engine.experiment.runner import ArmReply
from engine.requests import GenerationRequest, Message
from tests.engine.experiment.answering_client import finished
from tests.support.fakes_client import CONFIGURATION, ScriptedClient

LOOKUP = parse_arm("lookup:auto")
REQUEST = GenerationRequest(messages=(Message("user", "Hello?"),), seed=5, max_tokens=64)
N_TOKENS = 60


def answer(arm: Arm, tps: float, text: str = "", per_round: float = 4.0) -> ArmReply:
    """Give a finished reply; one of an arm that drafts has this many tokens a round."""
    made = ArmReply(arm)
    made.handle(ended(arm, tps, text, per_round))
    return made


def ended(arm: Arm, tps: float, text: str, per_round: float) -> Finished:
    end = finished(range(N_TOKENS), tps, seed=5, n_verified=0 if arm.is_plain else 80)
    n_rounds = N_TOKENS if arm.is_plain else round(N_TOKENS / per_round)
    ids = tuple(map(ord, text)) or end.token_ids
    stats = replace(end.stats, n_rounds=n_rounds)
    return replace(end, stats=stats, text=text or end.text, token_ids=ids)


def block(ratio: float, **changes: object) -> ReplyBlock:
    slow, fast = answer(PLAIN, 100.0), answer(LOOKUP, 100.0 * ratio, **changes)  # type: ignore[arg-type]
    return slow, fast, fast, slow


def compared(*blocks: ReplyBlock, request: GenerationRequest = REQUEST) -> Comparison:
    client = ScriptedClient()
    client.load(CONFIGURATION)
    comparison = Comparison(client, request, (PLAIN, LOOKUP), speculation=SpeculationSettings())
    comparison.blocks += blocks
    if blocks:
        comparison.shown = list(blocks[-1][:2])
    return comparison


def shown(comparison: Comparison, width: int = 140) -> str:
    return "\n".join(plain(line) for line in verdict_lines(comparison, width))


@pytest.mark.parametrize(
    ("ratios", "words", "style"),
    [
        ([1.4] * 6, "1.40x: lookup:auto is faster than plain  1.40x to 1.40x in 6", "strong good"),
        ([0.8] * 6, "0.80x: lookup:auto is slower than plain", "strong bad"),
        ([1.01] * 6, "no clear difference (1.01x", "strong"),
        ([1.4], "1.40x so far (1.40x to 1.40x in 1 block): the verdict needs 6 blocks", "strong"),
        (
            [1.4, 1.4, 1.4, 1.4, 1.4, 0.9],
            "1.40x so far (0.90x to 1.40x in 6 blocks): the verdict needs 16",
            "strong",
        ),
    ],
)
def test_a_verdict_has_its_interval_and_too_few_blocks_have_none(
    ratios: list[float], words: str, style: str
) -> None:
    comparison = compared(*map(block, ratios))
    assert words in shown(comparison)
    assert style in {run.style for line in verdict_lines(comparison, 140) for run in line}


def test_no_gain_is_claimed_beyond_the_tokens_of_a_round() -> None:
    comparison = compared(*[block(1.48, per_round=1.09)] * 6)
    assert "no clear difference (1.09x" in shown(comparison)
    assert "measured 1.48x: drafts explain 1.09x, the rest is noise" in shown(comparison)
    assert "3.00x: lookup:auto is faster" in shown(compared(*[block(3.1, per_round=3.0)] * 6))


def test_a_difference_without_any_draft_is_noise() -> None:
    comparison = compared(block(0.5))
    for each in comparison.blocks[0]:
        each.stats = replace(each.stats, n_verified=0)
    assert "neither side drafted (0.50x): the difference is measurement noise" in shown(comparison)
    assert "nothing drafted" in plain(figure_lines(comparison.shown[1], 60)[1])


def test_identical_texts_are_named_with_their_length() -> None:
    assert "has the same 60 tokens" in shown(compared(block(1.0)))


def test_texts_that_diverge_show_how_both_continue() -> None:
    fox, dog = (answer(arm, 100.0, f"The red {animal} ran") for arm, animal in
                ((PLAIN, "fox"), (LOOKUP, "dog")))  # fmt: skip
    comparison = compared((fox, dog, dog, fox))
    text = "diverges at token 9 in 2 of 2 replies: The red [fox ran] or [dog ran]"
    assert text in shown(comparison)


@pytest.mark.parametrize(
    ("margin", "temperature", "verification", "words"),
    [
        (0.05, 0.0, "coupled", "near tie: the logits differ by 0.050, so rounding decides"),
        (1.5, 0.0, "rejection", "  the logits differ by 1.50"),
        (None, 0.0, "coupled", "or [dog ran]"),
        (1.5, 0.7, "rejection", "rejection sampling preserves the distribution"),
    ],
)
def test_a_divergence_has_its_reason(
    margin: float | None, temperature: float, verification: Verification, words: str
) -> None:
    request = replace(REQUEST, sampling=SamplingSettings(temperature=temperature))
    fox, dog = (answer(arm, 100.0, f"The {animal} ran") for arm, animal in
                ((PLAIN, "fox"), (LOOKUP, "dog")))  # fmt: skip
    tokens = (CommittedToken(1, TokenKind.PLAIN, margin=margin),) * 9
    fox.handle(TokensCommitted(tokens, ""))
    comparison = compared((fox, dog, dog, fox), request=request)
    comparison.speculation = SpeculationSettings(verification=verification)
    assert words in shown(comparison, 200)


@pytest.mark.parametrize("width", [20, 40, 78, 160])
def test_every_line_fits(width: int) -> None:
    comparison = compared(block(1.4, text="Another reply"))
    lines = verdict_lines(comparison, width) + figure_lines(comparison.shown[1], width)
    assert all(width_of(line) <= width for line in lines)
