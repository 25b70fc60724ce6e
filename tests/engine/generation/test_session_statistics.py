"""What a session counts of its drafts: each token under who drafted it, and at its place."""

from dataclasses import replace
from itertools import chain

from engine.configuration import PredictorName
from engine.events import CommittedToken, Event, RoundFinished, TokenKind, TokensCommitted
from engine.testing import FakeBackend
from tests.engine.speculation.test_predictors_in_session import reading
from tests.support.sessions import (
    LETTERS,
    finished,
    make_session,
    request,
    run,
)

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


def test_a_committed_token_names_who_drafted_it_or_what_it_replaces() -> None:
    reported = [event for event in played() if isinstance(event, TokensCommitted | RoundFinished)]
    pairs = list(zip(reported[::2], reported[1::2], strict=True))
    assert any(finished_round.n_verified for _, finished_round in pairs)
    for committed, finished_round in pairs:
        assert isinstance(committed, TokensCommitted)
        assert isinstance(finished_round, RoundFinished)
        assert (finished_round.source is None) == (finished_round.n_drafted == 0)
        for token in committed.tokens:
            assert (token.kind in DRAFTED) == (finished_round.n_verified > 0)
            assert token.source == (finished_round.source if token.kind in DRAFTED else None)


def _committed(events: list[Event]) -> list[CommittedToken]:
    reported = (event.tokens for event in events if isinstance(event, TokensCommitted))
    return list(chain.from_iterable(reported))
