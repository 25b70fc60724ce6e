"""How much of a chat has to go so that the model can go on in a full context."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.chat.prompting import place_of
from app.store.records import StoredMessage

MAX_KEPT = 2 / 3
"""Share of the context that what is kept may fill: a third is free for what comes."""
BYTES_PER_TOKEN = 3.0
"""Of a text whose tokens are not known; mostly more, so that rather too much is counted."""
MIN_BYTES_PER_TOKEN = 1.0
MAX_BYTES_PER_TOKEN = 8.0
"""Texts are hardly ever in longer tokens: so many bytes of a message are a token at least."""
TURN_TOKENS = 8
"""Tokens that a chat template puts around a message; those of known templates are 4 to 8."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the model would no longer see."""

    kept_from: int
    """Id of the first message that it would still see: a question."""
    dropped: tuple[StoredMessage, ...]
    """The messages before it, except those that were dropped earlier."""


def room(
    path: Sequence[StoredMessage], *, n_ctx: int, fixed_text: str = "", kept_from: int | None = None
) -> Room | None:
    """Give the fewest oldest turns to drop so that a third of the context is free.

    The last question always stays, and with it the reply to it; less may be free then. None where
    there is no turn before it.

    Args:
        path: The shown messages from the root on.
        n_ctx: Cells of the context.
        fixed_text: System prompt and summary, which stay.
        kept_from: First message that the model sees now.
    """
    start = place_of(kept_from, path)
    per_token = bytes_per_token(path)
    sizes = [n_tokens(message, per_token) for message in path]
    n_fixed = round(len(fixed_text.encode()) / per_token) + TURN_TOKENS
    questions = [i for i in range(start + 1, len(path)) if path[i].role == "user"]
    if not questions:
        return None
    fitting = (i for i in questions if n_fixed + sum(sizes[i:]) <= MAX_KEPT * n_ctx)
    first = next(fitting, questions[-1])
    return Room(path[first].id, tuple(path[start:first]))


def n_tokens(message: StoredMessage, per_token: float = BYTES_PER_TOKEN) -> int:
    """Give how many tokens a message has with what the template puts around it, as far as known."""
    if message.token_ids:
        return len(message.token_ids) + TURN_TOKENS
    return round(len(message.content.encode()) / per_token) + TURN_TOKENS


def is_surely_longer(text: str, n_ctx: int) -> bool:
    """Whether a text alone is more than the context holds, however long its tokens are."""
    return len(text.encode()) > MAX_BYTES_PER_TOKEN * n_ctx


def bytes_per_token(path: Sequence[StoredMessage]) -> float:
    """Give how long a token of a chat is, from its replies, at most `BYTES_PER_TOKEN`."""
    known = [message for message in path if message.token_ids]
    n_known = sum(len(message.token_ids or ()) for message in known)
    n_bytes = sum(len(message.content.encode()) for message in known)
    if not n_known:
        return BYTES_PER_TOKEN
    return min(max(n_bytes / n_known, MIN_BYTES_PER_TOKEN), BYTES_PER_TOKEN)
