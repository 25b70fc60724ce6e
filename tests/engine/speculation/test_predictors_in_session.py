"""What every predictor that reads the chat itself must keep to inside a session."""

from dataclasses import replace

import pytest

from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.events import RoundFinished, TokenKind, TokensCommitted
from engine.testing import FakeBackend, FakeVocabulary
from tests.support.sessions import (
    LETTERS,
    OFF,
    WARM,
    finished,
    make_session,
    request,
    run,
)

FEW_LETTERS = FakeVocabulary(4, ord("a"))
READERS = [PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.COMBINED]
SOURCES = {
    PredictorName.LOOKUP: {"lookup"},
    PredictorName.SUFFIX: {"suffix"},
    PredictorName.COMBINED: {"lookup", "suffix"},
}


def reading(predictor: PredictorName, n_draft: int = 5) -> SpeculationSettings:
    return SpeculationSettings(
        predictor=predictor,
        controller=ControllerName.FIXED,
        n_draft=n_draft,
        lookup_pattern_min=1,
        suffix_min_confidence=0.1,
    )


def repetitive() -> FakeBackend:
    return FakeBackend(FEW_LETTERS, sharpness=3.0, order=2, end_bias=-30.0)


@pytest.mark.parametrize("predictor", READERS)
def test_text_that_repeats_takes_fewer_rounds(predictor: PredictorName) -> None:
    target = repetitive()
    events = run(make_session(reading(predictor), target=target), request("abab", max_tokens=80))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert len(rounds) < 60
    assert {each.source for each in rounds} - {None} <= SOURCES[predictor]


def test_the_draft_model_drafts_after_lookups_without_a_match() -> None:
    settings = reading(PredictorName.COMBINED)
    for seed in range(3):
        wanted = replace(request("abcabd"), sampling=WARM, seed=seed, max_tokens=80)
        plain = finished(run(make_session(OFF), wanted))
        draft = FakeBackend(LETTERS, sharpness=2.0, noise=0.3)
        events = run(make_session(settings, draft=draft), wanted)
        assert finished(events).token_ids == plain.token_ids
        tokens = [
            token
            for event in events
            if isinstance(event, TokensCommitted)
            for token in event.tokens
            if token.kind is TokenKind.DRAFT
        ]
        assert "draft" in {token.source for token in tokens}
