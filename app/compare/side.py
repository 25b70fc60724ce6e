"""One side of a comparison: how it drafts, the sides to choose from, what a chat asks of them."""

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from app.chat.attachments import as_written
from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL, Phase
from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings
from engine.errors import EngineError, PresetError
from engine.requests import GenerationRequest
from engine.speculation.predictor_pool import with_predictor

_RULES = (ControllerName.AUTO, ControllerName.FIXED)

SEED_BITS = 31
"""A seed that a person may copy by hand."""
MAX_TOKENS = 256
"""Tokens of each reply, where the settings say no number."""


class SideError(EngineError):
    """A side was written in a way that says nothing."""

    title = "The comparison cannot start"


@dataclass(frozen=True, slots=True)
class Side:
    """The settings that one of the two replies is made with."""

    settings: SpeculationSettings

    @property
    def is_plain(self) -> bool:
        """Nothing is drafted."""
        return self.settings.predictor is PredictorName.OFF

    @property
    def label(self) -> str:
        """The settings in a few words: `plain`, `lookup · auto`, `draft · fixed 4`."""
        settings = self.settings
        if self.is_plain:
            return "plain"
        rule = settings.controller.value
        if settings.controller is not ControllerName.AUTO:
            rule += f" {settings.n_draft}"
        return f"{settings.predictor} · {rule}"

    def with_predictor(self, name: PredictorName) -> "Side":
        """The same rule with another source of drafts."""
        return Side(replace(self.settings, predictor=name))

    def with_controller(self, name: ControllerName) -> "Side":
        """The same source under another rule."""
        return Side(replace(self.settings, controller=name))

    def with_length(self, n_draft: int) -> "Side":
        """Drafts of another length, kept between 1 and the longest there may be."""
        n_draft = min(max(n_draft, 1), MAX_DRAFT)
        return Side(replace(self.settings, n_draft=n_draft))


def plain_side(settings: SpeculationSettings) -> Side:
    """Plain decoding, all else as in `settings`."""
    return Side(replace(settings, predictor=PredictorName.OFF))


def speculative_side(settings: SpeculationSettings) -> Side:
    """The settings that are on; where nothing is, all sources under the automatic rule."""
    if settings.predictor is not PredictorName.OFF:
        return Side(settings)
    automatic = ControllerName.AUTO
    return Side(replace(settings, predictor=PredictorName.COMBINED, controller=automatic))


def read_side(text: str, settings: SpeculationSettings) -> Side:
    """Read `PREDICTOR[:CONTROLLER[:LENGTH]]`, such as `off`, `lookup:fixed:4`.

    Args:
        text: What was typed; `plain` is `off`.
        settings: Everything that the text does not say.

    Raises:
        SideError: If a part of it is none of the words that it can be.
    """
    first, *rest = text.strip().lower().split(":")
    try:
        side = Side(with_predictor(settings, "off" if first == "plain" else first))
    except PresetError as error:
        raise SideError(f"{text!r}: {error}") from error
    if rest:
        side = side.with_controller(_controller(rest[0], text))
    if rest[1:]:
        side = side.with_length(_length(rest[1], text))
    if rest[2:]:
        raise SideError(f"{text!r}: a side is PREDICTOR, PREDICTOR:RULE or PREDICTOR:RULE:LENGTH")
    return side


def check_available(sides: tuple[Side, ...], predictors: tuple[str, ...]) -> None:
    """Refuse a predictor that the loaded model cannot use.

    Args:
        sides: What is to be compared.
        predictors: Those that the model can use (`Loaded.predictors`).

    Raises:
        SideError: If one of the sides drafts with another.
    """
    for side in sides:
        name = side.settings.predictor.value
        if name not in predictors:
            needs = "; specify a draft model with --draft" if name == "draft" else ""
            raise SideError(
                f"the {name} predictor cannot be used here, only {', '.join(predictors)}{needs}"
            )


def _controller(word: str, text: str) -> ControllerName:
    if word not in list(ControllerName):
        raise SideError(f"{text!r}: {word or 'nothing'} is not one of {', '.join(ControllerName)}")
    return ControllerName(word)


def _length(word: str, text: str) -> int:
    if not word.isdecimal() or not 1 <= int(word) <= MAX_DRAFT:
        raise SideError(f"{text!r}: the length is a number from 1 to {MAX_DRAFT}")
    return int(word)


def side_choices(predictors: tuple[str, ...], settings: SpeculationSettings) -> list[Side]:
    """The sides to choose from.

    Args:
        predictors: What the model can use (`Loaded.predictors`).
        settings: All that a choice does not say.
    """
    found: list[Side] = []
    for name in map(PredictorName, predictors):
        side = Side(settings).with_predictor(name)
        found += [side] if side.is_plain else [side.with_controller(rule) for rule in _RULES]
    return found


def obstacle(controller: Conversation) -> str | None:
    """Why nothing can be compared now; None where it can."""
    if controller.is_replying:
        return "A reply is running: stop it ({reply-stop}) before you compare."
    if controller.is_leased:
        return "Another comparison is still ending: try again in a moment."
    configuration = controller.configuration
    if configuration is not None and configuration.server is not None:
        return (
            "The drafts of a server are set when it starts: only models on this machine can "
            "be compared."
        )
    match controller.meters.phase:
        case Phase.EMPTY:
            return NO_MODEL
        case Phase.LOADING:
            return "The model is still being loaded."
        case Phase.STOPPED:
            return "The engine has stopped: {engine-restart} restarts it."
        case _:
            return None


def prompt_of(controller: Conversation, composed: str, folder: Path) -> str:
    """The text to answer as it is written: the composer's, else the last question of the chat."""
    if composed.strip():
        return composed
    question = controller.history.last(Speaker.USER)
    return as_written(question.content, folder) if question is not None else ""


def request_of(
    controller: Conversation, composed: str, *, max_tokens: int = MAX_TOKENS
) -> GenerationRequest | None:
    """The request that both sides answer, with the chat before it; None without a question.

    Raises:
        StoreError: If the chat cannot be read.
    """
    history = controller.history
    if composed.strip():
        messages = history.messages_with(composed)
    else:
        question = history.last(Speaker.USER)
        if question is None:
            return None
        messages = history.request_messages(question.id)
    return GenerationRequest(
        messages=messages,
        sampling=history.sampling,
        max_tokens=max_tokens,
        seed=secrets.randbits(SEED_BITS),
    )
