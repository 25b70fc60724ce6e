"""What a session counts of its drafts: each token under who drafted it, and at its place."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pytest

from engine.configuration import ControllerName, PredictorName
from engine.events import CommittedToken, Event, RoundFinished, TokenKind, TokensCommitted
from engine.speculation.predictors.base import DraftToken, Predictor
from engine.speculation.registry import Readers
from tests.engine.generation.test_session import (
    DRAFT,
    LETTERS,
    LOOKUP,
    OFF,
    finished,
    make_session,
    request,
    run,
)
from tests.engine.speculation.test_predictors_in_session import reading, repetitive
from tests.fakes import FakeBackend

DRAFTED = (TokenKind.DRAFT, TokenKind.CORRECTION, TokenKind.BONUS)


def played() -> list[Event]:
    """Give a reply to which two predictors contribute."""
    draft = FakeBackend(LETTERS, sharpness=2.0, noise=0.3)
    session = make_session(reading(PredictorName.COMBINED), draft=draft)
    return run(session, replace(request("abcabd"), seed=1, max_tokens=80))


def test_a_reply_of_two_predictors_counts_each_token_under_its_own() -> None:
    events = played()
    stats = finished(events).stats
    assert len(stats.by_source) > 1
    drafted = [each for each in _committed(events) if each.kind is TokenKind.DRAFT]
    for name, counts in stats.by_source.items():
        assert counts.n_accepted == sum(each.source == name for each in drafted)
    assert sum(each.n_verified for each in stats.by_source.values()) == stats.n_verified


def test_places_add_up_and_each_holds_no_more_than_the_one_before() -> None:
    stats = finished(played()).stats
    assert sum(each.n_accepted for each in stats.by_position) == stats.n_accepted
    assert sum(each.n_examined for each in stats.by_position) == stats.n_examined
    assert [each.n_examined for each in stats.by_position[1:]] <= [
        each.n_accepted for each in stats.by_position[:-1]
    ]


def test_a_committed_token_names_who_drafted_it_or_what_it_replaces() -> None:
    told = [event for event in played() if isinstance(event, TokensCommitted | RoundFinished)]
    pairs = list(zip(told[::2], told[1::2], strict=True))
    assert any(finished_round.n_verified for _, finished_round in pairs)
    for committed, finished_round in pairs:
        assert isinstance(committed, TokensCommitted)
        assert isinstance(finished_round, RoundFinished)
        verified = finished_round.sources[: finished_round.n_verified]
        assert finished_round.source == (verified[0] if verified else None)
        for place, token in enumerate(committed.tokens):
            if token.kind in DRAFTED:
                assert token.source == verified[min(place, len(verified) - 1)]


class TwoVoices:
    """Guesses as look-up does, every second token under another name."""

    def __init__(self, inner: Predictor) -> None:
        self.name, self.reset, self.commit, self.close = (
            inner.name, inner.reset, inner.commit, inner.close,
        )  # fmt: skip
        self._inner = inner

    def propose(self) -> Iterator[DraftToken]:
        for place, guess in enumerate(self._inner.propose()):
            yield replace(guess, source=("first", "second")[place % 2])


def test_a_draft_of_two_sources_is_counted_and_shown_token_by_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    give = Readers.give
    monkeypatch.setattr(Readers, "give", lambda *args: TwoVoices(give(*args)))
    session = make_session(reading(PredictorName.LOOKUP), target=repetitive())
    events = run(session, request("abab", max_tokens=80))
    stats = finished(events).stats
    drafted = [each for each in _committed(events) if each.kind is TokenKind.DRAFT]
    assert {each.source for each in drafted} == {"first", "second"}
    for name in ("first", "second"):
        counts = stats.by_source[name]
        assert 0 < counts.n_accepted == sum(each.source == name for each in drafted)
    odd_places = stats.by_position[1::2]
    assert stats.by_source["second"].n_examined == sum(each.n_examined for each in odd_places)


def test_guesses_that_were_never_verified_are_drafted_and_nothing_else() -> None:
    settings = replace(reading(PredictorName.LOOKUP), controller=ControllerName.AUTO)
    session = make_session(settings, target=repetitive())
    events = run(session, request("abab", max_tokens=120))
    stats = finished(events).stats
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert stats.n_drafted == sum(len(each.sources) for each in rounds)
    assert all(len(each.verdicts) == each.n_verified <= each.n_drafted for each in rounds)


def test_the_statistics_say_who_drafted_under_which_rule() -> None:
    stats = finished(run(make_session(DRAFT), request())).stats
    assert (stats.predictor, stats.controller) == ("draft", "fixed")
    session = make_session(OFF)
    assert finished(run(session, request())).stats.predictor == "off"
    session.set_speculation(LOOKUP)
    assert finished(run(session, request())).stats.predictor == "lookup"


def _committed(events: list[Event]) -> list[CommittedToken]:
    told = (event.tokens for event in events if isinstance(event, TokensCommitted))
    return list(chain.from_iterable(told))
