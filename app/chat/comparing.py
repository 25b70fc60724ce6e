"""The prompt and settings of a chat that a comparison uses."""

import secrets
from pathlib import Path

from app.chat.attachments import as_written
from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL, Phase
from engine.experiment.comparison import MAX_TOKENS, SEED_BITS
from engine.requests import GenerationRequest


def obstacle(conversation: Conversation) -> str | None:
    """Why nothing can be compared now; None if it can."""
    configuration = conversation.configuration
    if configuration is None:
        return NO_MODEL
    if configuration.server is not None:
        return (
            "The draft settings of a server are fixed when the server starts: load a model on this "
            "machine to compare."
        )
    is_busy = conversation.is_replying or conversation.has_task
    if is_busy or conversation.meters.phase is not Phase.READY:
        return (
            "A comparison needs a loaded model and no running reply: {reply-stop} stops a reply, "
            "{engine-restart} restarts the engine."
        )
    return None


def prompt_of(conversation: Conversation, composed: str, folder: Path) -> str:
    """The composer's text, else the last question of the chat, as the user wrote it."""
    if composed.strip():
        return composed
    question = conversation.history.last(Speaker.USER)
    return as_written(question.content, folder) if question is not None else ""


def request_of(
    conversation: Conversation, composed: str, *, max_tokens: int = MAX_TOKENS
) -> GenerationRequest | None:
    """The request that both arms answer, with the chat before it; None without a question.

    Raises:
        StoreError: the chat cannot be read.
    """
    history = conversation.history
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
