"""What a comparison asks when it begins in a chat, or why it cannot."""

import secrets

from app.chat.conversation import N_PAST_TOKENS, Conversation
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL, Phase
from engine.requests import GenerationRequest

SEED_BITS = 31
"""A seed that a person may copy by hand."""
MAX_TOKENS = 256
"""Tokens of each reply, where the settings say no number."""


def obstacle(controller: Conversation) -> str | None:
    """Why nothing can be compared now; None where it can."""
    if controller.is_replying:
        return "A reply is under way: esc stops it, then the two can be compared."
    if controller.is_leased:
        return "Another comparison is still ending: try again in a moment."
    match controller.meters.phase:
        case Phase.EMPTY:
            return NO_MODEL
        case Phase.LOADING:
            return "The model is still being loaded."
        case Phase.STOPPED:
            return "The engine has stopped: ctrl+r starts it again."
        case _:
            return None


def prompt_of(controller: Conversation, composed: str) -> str:
    """The text to answer: that of the composer, else the last question of the chat."""
    if composed.strip():
        return composed
    question = controller.history.last(Speaker.USER)
    return question.content if question is not None else ""


def request_of(
    controller: Conversation, composed: str, *, max_tokens: int = MAX_TOKENS
) -> GenerationRequest | None:
    """The request that both sides answer, with the chat before it; None without a question.

    Raises:
        StoreError: If the chat cannot be read.
    """
    history = controller.history
    answered: list[tuple[int, ...]] = []
    if composed.strip():
        messages = history.messages_with(composed)
    else:
        question = history.last(Speaker.USER)
        if question is None:
            return None
        messages = history.request_messages(question.id)
        answered = _answers_of(controller, question.id)
    return GenerationRequest(
        messages=messages,
        sampling=history.sampling,
        max_tokens=max_tokens,
        seed=secrets.randbits(SEED_BITS),
        past_replies=tuple(reply for reply in _past_replies(controller) if reply not in answered),
    )


def _past_replies(controller: Conversation) -> tuple[tuple[int, ...], ...]:
    if controller.loaded is None:
        return ()
    vocabulary_id = controller.loaded.vocabulary_id
    return controller.history.store.newest_replies(vocabulary_id, n_tokens=N_PAST_TOKENS)


def _answers_of(controller: Conversation, question_id: int) -> list[tuple[int, ...]]:
    """The replies to a question: drafts copied from those would be right for no reason."""
    reply = controller.history.last(Speaker.MODEL)
    if reply is None or reply.parent_id != question_id:
        return []
    variants = controller.history.store.variants(reply.id)
    return [variant.token_ids for variant in variants if variant.token_ids]
