"""A reply while it streams: its text so far and when it was last handed to the store."""

from collections.abc import Sequence

from app.chat.joined_stats import joined_stats
from app.chat.pieces import Piece, pieces_of
from app.store.locks import ChatLock
from app.store.records import StoredMessage
from app.store.reply_stats import stats_of
from engine.events import GenerationStats, TokensCommitted

SAVE_EVERY_S = 0.4
"""Time between two partial saves; with the store's own half second less than one is lost."""


class RunningReply:
    """Collects what the engine commits for one message."""

    def __init__(
        self,
        message: StoredMessage,
        prompt: str,
        parent_head: int | None,
        *,
        vocabulary_id: str | None = None,
        begun: StoredMessage | None = None,
        begun_pieces: Sequence[Piece] = (),
        chat_title: str = "",
    ) -> None:
        self.message = message
        """As it is stored while it streams."""
        self.prompt = prompt
        """The user's text, given back if the engine refuses it before the first token."""
        self.parent_head = parent_head
        """The chat's head before the text was sent."""
        self.vocabulary_id = vocabulary_id
        """In which its tokens are valid: that of the model which was asked."""
        self.chat_title = chat_title
        self.begun = begun
        """The reply as it was when it was cut, None if it is a new one."""
        self.lock: ChatLock | None = None
        """Set once the chat is no longer shown, so that it stays locked to the end."""
        self.is_stopping = False
        self.pieces = list(begun_pieces)
        """The text so far by where its tokens came from."""
        self._texts = [begun.content] if begun is not None else []
        self._token_ids = list(begun.token_ids or ()) if begun is not None else []
        self._n_begun = len(self._token_ids)
        self._saved_at = 0.0
        self._has_unsaved = False

    @property
    def chat_id(self) -> int:
        """The chat that it is part of."""
        return self.message.chat_id

    @property
    def message_id(self) -> int:
        """The message that it becomes."""
        return self.message.id

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
        """At least one token came since it was asked for."""
        return len(self._token_ids) > self._n_begun

    @property
    def seed(self) -> int | None:
        """The seed of the part that was there before, if there was one."""
        return self.begun.seed if self.begun is not None else None

    def whole_stats(self, of_this_part: GenerationStats | None) -> GenerationStats | None:
        """Give the statistics of the reply with the part that was there before."""
        before = stats_of(self.begun) if self.begun is not None else None
        if before is None or of_this_part is None:
            return of_this_part or before
        return joined_stats(before, of_this_part)

    def take_lock(self) -> ChatLock | None:
        """Hand the lock of the chat over to the caller."""
        lock, self.lock = self.lock, None
        return lock

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
