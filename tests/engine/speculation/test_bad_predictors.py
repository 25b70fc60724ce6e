"""With a faulty predictor the reply goes on without drafts, with the reason."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import pytest

from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.events import Event, RoundFinished, SpeculationChanged
from engine.generation.session import Session
from engine.speculation.predictors.base import DraftToken
from engine.testing import FakeBackend
from tests.support.sessions import LETTERS, OFF, finished, make_session, request, run

CUSTOM = SpeculationSettings(
    predictor=PredictorName.CUSTOM, controller=ControllerName.FIXED, n_draft=4
)
N_VOCAB = LETTERS.n_tokens


class Mine:
    name = "mine"

    def __init__(self) -> None:
        self.line: list[int] = []

    def reset(self, history: Sequence[int]) -> None:
        self.line = list(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self.line += tokens

    def propose(self) -> Iterator[DraftToken]:
        for token in self.line[-3:]:
            yield DraftToken(token, 0.5)


def raising(*_: object) -> Any:
    raise ValueError("boom")


def proposing(*guesses: Any) -> Callable[[Mine], Iterator[DraftToken]]:
    return lambda _: iter(guesses)


def failing_late(_: Mine) -> Iterator[DraftToken]:
    yield DraftToken(1, 1.0)
    raise ValueError("boom")


def late(_: Mine) -> Iterator[DraftToken]:
    """Answer when the test is over."""
    OVER.wait()
    yield DraftToken(1, 1.0)


OVER = threading.Event()


BAD: dict[str, dict[str, Any]] = {
    "raises in reset": {"reset": raising},
    "raises in commit": {"commit": raising},
    "raises in propose": {"propose": raising},
    "raises after a guess": {"propose": failing_late},
    "beyond the vocabulary": {"propose": proposing(DraftToken(N_VOCAB, 1.0))},
    "nothing to iterate": {"propose": lambda _: 7},
}


def session_with(parts: dict[str, Any], target: FakeBackend | None = None) -> Session:
    bad = type("Bad", (Mine,), parts)
    return make_session(CUSTOM, target=target, custom=bad())


@pytest.fixture(autouse=True)
def over() -> Iterator[None]:
    OVER.clear()
    yield
    OVER.set()


def changes(events: list[Event]) -> list[SpeculationChanged]:
    return [event for event in events if isinstance(event, SpeculationChanged)]


@pytest.mark.parametrize("controller", ControllerName)
def test_late_drafts_change_no_text(controller: ControllerName) -> None:
    plain = finished(run(make_session(OFF), request()))
    session = session_with({"propose": late})
    session.set_speculation(replace(CUSTOM, controller=controller))
    assert finished(run(session, request())).token_ids == plain.token_ids


def test_late_drafts_are_switched_off_with_the_reason() -> None:
    events = run(session_with({"propose": late}), request())
    assert changes(events)[-1].predictor is PredictorName.OFF
    assert "late" in (changes(events)[-1].note or "")
    assert not any(event.n_drafted for event in events if isinstance(event, RoundFinished))


@pytest.mark.parametrize("controller", ControllerName)
@pytest.mark.parametrize("parts", BAD.values(), ids=BAD)
def test_the_text_is_the_plain_one_and_the_predictor_is_off_with_the_reason(
    parts: dict[str, Any], controller: ControllerName
) -> None:
    plain = finished(run(make_session(OFF), request()))
    session = session_with(parts)
    session.set_speculation(replace(CUSTOM, controller=controller))
    events = run(session, request())
    assert finished(events).token_ids == plain.token_ids
    assert changes(events)[0].predictor is PredictorName.CUSTOM
    assert changes(events)[-1].predictor is PredictorName.OFF
    assert "custom" in (changes(events)[-1].note or "")
    assert not any(event.n_drafted for event in events[-20:] if isinstance(event, RoundFinished))


def test_it_is_tried_again_in_the_next_reply() -> None:
    fails = [True]

    def propose(mine: Mine) -> Iterator[DraftToken]:
        return raising() if fails[0] else Mine.propose(mine)  # type: ignore[no-any-return]

    session = session_with({"propose": propose})
    assert changes(run(session, request()))[-1].predictor is PredictorName.OFF
    fails[0] = False
    assert changes(run(session, request()))[-1].predictor is PredictorName.CUSTOM


@pytest.mark.parametrize("n_ctx", [20, 24, 40])
def test_a_draft_without_end_stays_inside_context_and_limit(n_ctx: int) -> None:
    endless = {"propose": lambda _: repeat(DraftToken(1, 1.0))}
    plain = finished(run(make_session(OFF, target=FakeBackend(n_ctx=n_ctx)), request()))
    session = session_with(endless, FakeBackend(n_ctx=n_ctx))
    session.set_speculation(replace(CUSTOM, n_draft=16))
    events = run(session, request())
    assert finished(events).token_ids == plain.token_ids
    assert finished(events).reason == plain.reason
    assert all(note.note is None for note in changes(events))


def test_a_good_one_drafts_under_its_own_name() -> None:
    plain = finished(run(make_session(OFF), request()))
    session = session_with({})
    events = run(session, request())
    assert finished(events).token_ids == plain.token_ids
    sources = {event.source for event in events if isinstance(event, RoundFinished)}
    assert sources - {None} == {"mine"}
    assert "custom" in session.predictors
