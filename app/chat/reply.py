"""A reply while it streams: its text so far and when it was last handed to the store."""

from app.chat.pieces import Piece, pieces_of
from app.store.locks import ChatLock
from engine.events import TokensCommitted

SAVE_EVERY_S = 0.4
"""Time between two partial saves; with the store's own half second less than one is lost."""


class RunningReply:
    """Collects what the engine commits for one message."""

    def __init__(self, chat_id: int, message_id: int, prompt: str, parent_head: int | None) -> None:
        self.chat_id = chat_id
        self.message_id = message_id
        self.prompt = prompt
        """The user's text, given back if the engine refuses it before the first token."""
        self.parent_head = parent_head
        """The chat's head before the text was sent."""
        self.lock: ChatLock | None = None
        """Set once the chat is no longer shown, so that it stays locked to the end."""
        self.is_stopping = False
        self.pieces: list[Piece] = []
        """The text so far by where its tokens came from."""
        self._texts: list[str] = []
        self._token_ids: list[int] = []
        self._saved_at = 0.0
        self._has_unsaved = False

    @property
    def text(self) -> str:
        """The text so far."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of the tokens so far."""
        return tuple(self._token_ids)

    @property
    def has_begun(self) -> bool:
        """At least one token came."""
        return bool(self._token_ids)

    def add(self, event: TokensCommitted) -> None:
        """Take in the tokens of a round."""
        self._texts.append(event.text)
        self.pieces += pieces_of(event)
        self._token_ids += [token.token for token in event.tokens]
        self._has_unsaved = True

    def is_due(self, now: float) -> bool:
        """Whether a partial save is due; counts as done when it is."""
        if not self._has_unsaved or now - self._saved_at < SAVE_EVERY_S:
            return False
        self._saved_at = now
        self._has_unsaved = False
        return True
