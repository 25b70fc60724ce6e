"""Sessions over fake models whose tokens are letters, and the events of their replies."""

from collections.abc import Sequence
from dataclasses import replace

from engine.configuration import (
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.events import (
    CommittedToken,
    Event,
    Finished,
    PromptReady,
    RoundFinished,
    TokensCommitted,
)
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.speculation.costs import CostProfile
from engine.speculation.predictors.base import Predictor
from engine.testing import TEMPLATE, FakeBackend, FakeVocabulary

LETTERS = FakeVocabulary(26, ord("a"))
OFF = SpeculationSettings(predictor=PredictorName.OFF)
LOOKUP = SpeculationSettings(
    predictor=PredictorName.LOOKUP, controller=ControllerName.FIXED, n_draft=3
)
DRAFT = replace(LOOKUP, predictor=PredictorName.DRAFT, draft_min_confidence=0.0)
AUTO = replace(LOOKUP, controller=ControllerName.AUTO)
GREEDY = SamplingSettings()
WARM = SamplingSettings(temperature=0.8, top_k=8)
COSTS = CostProfile(((1, 1.0), (2, 1.1), (17, 1.3)))


def make_session(
    speculation: SpeculationSettings = OFF,
    *,
    target: FakeBackend | None = None,
    draft: FakeBackend | None = None,
    costs: CostProfile | None = None,
    custom: Predictor | None = None,
    template: str = TEMPLATE,
) -> Session:
    """A session; the draft model, where one is wanted, nearly agrees with the target."""
    needs_draft = speculation.predictor is PredictorName.DRAFT and draft is None
    if needs_draft:
        draft = FakeBackend(LETTERS, sharpness=2.0, noise=0.3)
    return Session(
        target or FakeBackend(LETTERS, sharpness=2.0),
        ChatTemplate(template, bos="<bos>", eos="<end>"),
        speculation,
        draft_backend=draft,
        costs=costs,
        custom_predictor=custom,
    )


def request(text: str = "abcabcabc", **changes: object) -> GenerationRequest:
    base = GenerationRequest(messages=(Message("user", text),), max_tokens=60, seed=7)
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name


def run(session: Session, wanted: GenerationRequest) -> list[Event]:
    return list(session.generate(wanted, Cancellation()))


def finished(events: Sequence[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def ready(events: Sequence[Event]) -> PromptReady:
    return next(event for event in events if isinstance(event, PromptReady))


def rounds(events: Sequence[Event]) -> list[RoundFinished]:
    return [event for event in events if isinstance(event, RoundFinished)]


def committed(events: Sequence[Event]) -> list[CommittedToken]:
    committed_tokens = (event.tokens for event in events if isinstance(event, TokensCommitted))
    return [token for tokens in committed_tokens for token in tokens]


def as_message(reply: Finished) -> Message:
    return Message("assistant", reply.text, reply.token_ids, reply.vocabulary_id)
