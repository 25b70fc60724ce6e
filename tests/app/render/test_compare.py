"""What a comparison says."""

from dataclasses import replace

import pytest

from app.compare.comparison import Comparison
from app.compare.side import Side
from app.render.compare import figure_lines, verdict_lines
from app.render.lines import plain, width_of
from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.events import GenerationStats
from engine.requests import GenerationRequest, Message
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient, token_of

PLAIN = Side(SpeculationSettings(predictor=PredictorName.OFF))
LOOKUP = Side(SpeculationSettings(predictor=PredictorName.LOOKUP, controller=ControllerName.AUTO))
REQUEST = GenerationRequest(messages=(Message("user", "Hello?"),), seed=5, max_tokens=64)
SAME = Script(("Hello there, how are you?",))
PARTED = (token_of("The"), token_of(" red"), 9)
"""Ids of a reply that is another one from its third token on."""
OTHER = Script(("The red fox ran home", "The red dog ran home"))


def compared(
    script: Script = SAME, *, tps: tuple[float, ...] = (140.0,), second: Side = LOOKUP,
    request: GenerationRequest = REQUEST, ids: tuple[int, ...] | None = None, margin: float = 0.03,
) -> Comparison:  # fmt: skip
    client = ScriptedClient(script)
    client.load(CONFIGURATION)
    client.poll()
    comparison = Comparison(client, request, (PLAIN, second), restore=SpeculationSettings())
    comparison.add_pairs(len(tps))
    while comparison.is_running:
        for event in client.poll():
            comparison.take(event)
    for pair, value in zip(comparison.pairs, tps, strict=True):
        for answer, speed in ((pair.first, 100.0), (pair.second, value)):
            assert answer.finished is not None
            stats = replace(answer.finished.stats, decode_tps=speed)
            answer.finished = replace(answer.finished, stats=stats)
            answer.margins = [margin] * 40
        if ids is not None:
            assert pair.second.finished is not None
            pair.second.finished = replace(pair.second.finished, token_ids=ids)
    return comparison


def said(comparison: Comparison, width: int = 100) -> str:
    return "\n".join(plain(line) for line in verdict_lines(comparison, width))


def test_a_gain_a_loss_and_neither_have_words_and_colours() -> None:
    for tps, words, style in (
        ((142.0,), "1.42x: lookup · auto was faster than plain  one pair so far", "strong"),
        ((142.0, 142.0), "1.42x: lookup · auto is faster than plain", "strong good"),
        ((80.0, 80.0), "0.80x: lookup · auto is slower than plain", "strong bad"),
        ((101.0,), "the same speed (1.01x)", "strong"),
    ):
        comparison = compared(tps=tps)
        assert words in said(comparison)
        assert style in {run.style for line in verdict_lines(comparison, 100) for run in line}


def test_pairs_that_disagree_make_no_claim() -> None:
    assert "no clear difference (0.92x): the pairs disagree" in said(compared(tps=(105.0, 79.0)))
    assert "1.20x: lookup" in said(compared(tps=(130.0, 120.0, 95.0, 125.0, 110.0)))


def test_a_difference_without_any_draft_is_called_the_machines() -> None:
    comparison = compared(tps=(50.0,))
    for answer in (comparison.pairs[0].first, comparison.pairs[0].second):
        answer.tally = replace(answer.tally, n_verified=0)
    assert "neither side drafted (0.50x)" in said(comparison)
    assert "nothing drafted" in plain(figure_lines(comparison.shown[1], 60)[1])


def drafting(tps: tuple[float, ...], tokens_per_round: float) -> Comparison:
    """Give a comparison whose second side alone drafted, with that many tokens a round."""
    comparison = compared(tps=tps)
    for pair in comparison.pairs:
        pair.first.tally = GenerationStats(n_rounds=100, n_emitted=100)
        n_emitted = round(100 * tokens_per_round)
        pair.second.tally = GenerationStats(n_rounds=100, n_emitted=n_emitted, n_verified=80)
    return comparison


@pytest.mark.parametrize(
    ("tps", "tokens_per_round", "words"),
    [
        (
            (148.0,),
            1.09,
            "no clear difference (1.48x): drafts explain at most 1.09x, the rest",
        ),
        ((148.0,) * 9, 1.09, "no clear difference (1.48x): drafts explain at most 1.09x"),
        ((310.0,) * 3, 3.0, "3.00x: lookup · auto is faster than plain"),
        ((250.0,) * 3, 3.0, "2.50x: lookup · auto is faster than plain"),
        ((130.0,) * 3, 1.0, "no clear difference (1.30x): drafts explain at most 1.00x"),
        ((101.5,) * 3, 1.0, "the same speed (1.00x)"),
        ((60.0,) * 3, 1.0, "0.60x: lookup · auto is slower than plain"),
    ],
)
def test_no_gain_is_claimed_beyond_the_tokens_of_a_round(
    tps: tuple[float, ...], tokens_per_round: float, words: str
) -> None:
    assert words in said(drafting(tps, tokens_per_round), 140)


def test_no_loss_of_the_plain_side_is_claimed_beyond_the_tokens_of_a_round() -> None:
    comparison = drafting((60.0,) * 3, 1.1)
    for pair in comparison.pairs:
        pair.first.tally, pair.second.tally = pair.second.tally, pair.first.tally
    assert "no clear difference (0.60x): drafts explain at most 0.91x" in said(comparison, 140)


@pytest.mark.parametrize(
    ("saved_s", "words"),
    [
        (-0.1, "no clear difference (0.60x): drafts explain at most 0.88x, the rest is noise"),
        (-4.5, "0.60x: lookup · auto is slower than plain"),
    ],
)
def test_no_loss_is_claimed_beyond_what_the_rounds_with_drafts_cost(
    saved_s: float, words: str
) -> None:
    comparison = drafting((60.0,) * 3, 1.03)
    for pair in comparison.pairs:
        tally = pair.second.tally
        pair.second.tally = replace(tally, decode_s=10.0, saved_s=saved_s, saved_error_s=1.1)
    assert words in said(comparison, 140)


def test_several_pairs_are_listed_beside_their_median() -> None:
    shown = said(compared(tps=(140.0, 110.0, 120.0)))
    assert "1.20x: lookup" in shown
    assert "median of 3 pairs: 1.40 1.10 1.20" in shown


def test_identical_texts_are_called_so_with_their_length() -> None:
    assert "identical, all 5 tokens" in said(compared())


def test_texts_that_part_show_both_ways_to_go_on() -> None:
    shown = said(compared(OTHER, ids=PARTED))
    assert "diverges at token 3: The red [fox ran home] or [dog ran home]" in shown
    assert "a near tie: 0.030" in shown


@pytest.mark.parametrize("width", [20, 40, 78, 160])
def test_every_line_fits(width: int) -> None:
    comparison = compared(OTHER, ids=PARTED)
    lines = verdict_lines(comparison, width) + figure_lines(comparison.shown[1], width)
    assert all(width_of(line) <= width for line in lines)
