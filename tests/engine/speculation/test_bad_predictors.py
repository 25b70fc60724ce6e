"""The answer goes on plain, and says why, whatever a predictor does."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import ControllerName, PredictorName, SpeculationSettings
from engine.events import Event, RoundFinished, SpeculationChanged
from engine.generation.session import Session
from engine.speculation.predictors import guard
from engine.testing import FakeBackend
from tests.engine.generation.test_session import OFF, finished, make_session, request, run
from tests.plugins import install_predictor

CUSTOM = SpeculationSettings(
    predictor=PredictorName.CUSTOM,
    custom_predictor="mine",
    controller=ControllerName.FIXED,
    n_draft=4,
)
PREAMBLE = """
import time
from engine.speculation.predictors.base import DraftToken


class Mine:
    name = "mine"

    def __init__(self, setup):
        self.n_vocab = setup.n_vocab

    def reset(self, history):
        self.line = list(history)

    def commit(self, tokens):
        self.line += tokens

    def propose(self):
        for token in self.line[-3:]:
            yield DraftToken(token, 0.5)

    def close(self):
        pass


class Bad(Mine):
"""
BAD = {
    "raises in reset": "def reset(self, history): raise ValueError('boom')",
    "raises in commit": "def commit(self, tokens): raise ValueError('boom')",
    "raises in propose": "def propose(self): raise ValueError('boom')",
    "raises behind a guess": "def propose(self):\n    yield DraftToken(1, 1.0)\n    1 / 0",
    "exits": "def propose(self): raise SystemExit(1)",
    "beyond the vocabulary": "def propose(self):\n    yield DraftToken(self.n_vocab, 1.0)",
    "negative": "def propose(self):\n    yield DraftToken(-7, 1.0)",
    "no token": "def propose(self):\n    yield DraftToken('a', 1.0)",
    "no confidence": "def propose(self):\n    yield DraftToken(1, float('nan'))",
    "nothing to iterate": "def propose(self): return 7",
}
LATE = {
    "late": "def propose(self):\n    time.sleep(0.03)\n    yield DraftToken(1, 1.0)",
    "late and silent": "def propose(self):\n    time.sleep(0.03)\n    yield from ()",
}


def indented(code: str) -> str:
    return PREAMBLE + "".join(f"    {line}\n" for line in code.splitlines())


def session_with(
    code: str, folder: Path, monkeypatch: pytest.MonkeyPatch, target: FakeBackend | None = None
) -> Session:
    install_predictor(folder, monkeypatch, "mine", indented(code), attribute="Bad")
    return make_session(CUSTOM, target=target)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft is late five times as early, so that the tests sleep less."""
    monkeypatch.setattr(guard, "LATE_AT_LEAST_S", 0.02)
    monkeypatch.setattr(guard, "LATE_STEPS", 1.0)


def changes(events: list[Event]) -> list[SpeculationChanged]:
    return [event for event in events if isinstance(event, SpeculationChanged)]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("controller", ControllerName)
@pytest.mark.parametrize("code", LATE.values(), ids=LATE)
def test_late_drafts_change_no_text(
    code: str, controller: ControllerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = finished(run(make_session(OFF), request()))
    session = session_with(code, tmp_path, monkeypatch)
    session.set_speculation(replace(CUSTOM, controller=controller))
    assert finished(run(session, request())).token_ids == plain.token_ids


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("code", LATE.values(), ids=LATE)
def test_late_drafts_are_switched_off_where_the_length_is_fixed(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = run(session_with(code, tmp_path, monkeypatch), request())
    assert changes(events)[-1].predictor is PredictorName.OFF
    assert "it answers late" in (changes(events)[-1].note or "")
    assert not any(event.n_drafted for event in events[-20:] if isinstance(event, RoundFinished))


@pytest.mark.parametrize("controller", ControllerName)
@pytest.mark.parametrize("code", BAD.values(), ids=BAD)
def test_the_text_is_the_plain_one_and_the_predictor_is_off_with_the_reason(
    code: str, controller: ControllerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = finished(run(make_session(OFF), request()))
    session = session_with(code, tmp_path, monkeypatch)
    session.set_speculation(replace(CUSTOM, controller=controller))
    events = run(session, request())
    assert finished(events).token_ids == plain.token_ids
    assert changes(events)[0].predictor is PredictorName.CUSTOM
    assert changes(events)[-1].predictor is PredictorName.OFF
    note = changes(events)[-1].note or ""
    assert note.startswith("the custom:mine predictor failed and is off: ")
    assert not any(event.n_drafted for event in events[-20:] if isinstance(event, RoundFinished))


def test_it_stays_off_until_it_is_chosen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with(BAD["raises in propose"], tmp_path, monkeypatch)
    first = changes(run(session, request()))[-1]
    (second,) = changes(run(session, request()))
    assert second == first
    session.set_speculation(replace(CUSTOM))
    assert changes(run(session, request()))[0].predictor is PredictorName.CUSTOM


@pytest.mark.parametrize("n_ctx", [20, 24, 40])
def test_a_draft_without_end_stays_inside_context_and_limit(
    n_ctx: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def propose(self):\n    while True:\n        yield DraftToken(1, 1.0)"
    plain = finished(run(make_session(OFF, target=FakeBackend(n_ctx=n_ctx)), request()))
    session = session_with(code, tmp_path, monkeypatch, FakeBackend(n_ctx=n_ctx))
    session.set_speculation(replace(CUSTOM, n_draft=16))
    events = run(session, request())
    assert finished(events).token_ids == plain.token_ids
    assert finished(events).reason == plain.reason
    assert all(note.note is None for note in changes(events))


def test_a_good_one_drafts_under_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = finished(run(make_session(OFF), request()))
    session = session_with("pass", tmp_path, monkeypatch)
    events = run(session, request())
    assert finished(events).token_ids == plain.token_ids
    sources = {event.source for event in events if isinstance(event, RoundFinished)}
    assert sources - {None} == {"custom:mine"}
    assert "custom" in session.predictors
