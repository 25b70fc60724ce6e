"""Which replies were cut, and whether one can go on where it ended."""

from app.store.records import StoredMessage
from engine.errors import EngineError
from engine.events import FinishReason

WHOLE = (FinishReason.END, FinishReason.STOP_STRING)
"""How replies end that have nothing to go on with."""


class CannotContinueError(EngineError):
    """A reply that was cut cannot go on with the loaded model."""

    title = "The reply cannot go on"


def is_cut(message: StoredMessage) -> bool:
    """Whether this is a reply that ended before the model was done."""
    return message.role == "assistant" and message.finish_reason not in WHOLE


def is_out_of_room(message: StoredMessage) -> bool:
    """Whether this is a reply that ended, or never began, because the context was full."""
    return message.role == "assistant" and message.finish_reason == FinishReason.CONTEXT


def can_go_on(message: StoredMessage, vocabulary_id: str | None) -> bool:
    """Whether a reply that was cut can go on with a model of this vocabulary; None is any."""
    if not message.content:
        return True
    is_known = bool(message.token_ids) and message.vocabulary_id is not None
    return is_known and vocabulary_id in (None, message.vocabulary_id)


def known_tokens(message: StoredMessage, vocabulary_id: str) -> tuple[int, ...]:
    """Give the tokens that a reply goes on behind; none where it holds no text yet.

    Args:
        message: The reply.
        vocabulary_id: The vocabulary of the loaded model.

    Raises:
        CannotContinueError: If its tokens are not known, or are those of another vocabulary.
    """
    if not message.content:
        return ()
    if not message.token_ids or message.vocabulary_id is None:
        raise CannotContinueError(
            "which tokens this reply has was not kept, only its text: ctrl+g answers once more"
        )
    if message.vocabulary_id != vocabulary_id:
        by = f" by {message.model_name}" if message.model_name else ""
        raise CannotContinueError(
            f"it was written{by} in another vocabulary than the loaded model has: load that model "
            "(ctrl+o), or answer once more (ctrl+g)"
        )
    return message.token_ids
