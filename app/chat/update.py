"""What one look at the engine changed, for the screen to show; and who else may look."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.chat.spans import TokenSpan
from app.store.errors import StoreError
from engine.events import Event, Loaded

READ_AHEAD, SUMMARY = -1, -2
"""Ids of the replies that are no message's: the start of a new chat that is read ahead, and a
summary. Those of a comparison are `engine.experiment.comparison.REPLY_IDS`."""

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user is shown once."""

    message: str
    title: str = ""
    severity: Severity = "information"
    is_in_transcript: bool = False
    """The transcript says it too: who sees that needs no notice."""


@dataclass(frozen=True, slots=True)
class ChatUpdate:
    """What one poll changed."""

    text: str = ""
    """New text of the live reply."""
    is_rebuilt: bool = False
    """The entries are others than before."""
    notices: tuple[Notice, ...] = ()
    draft: str | None = None
    """A text that was sent and comes back, because the engine refused it."""
    loaded: Loaded | None = None
    spans: tuple[TokenSpan, ...] = ()
    """The new text by where its tokens came from."""
    context_full: str | None = None
    """Why the shown chat's reply has no room: the user has to choose what goes."""


@dataclass(slots=True)
class UpdateBuilder:
    """Collects what changes until the next poll takes it."""

    text: list[str] = field(default_factory=list)
    spans: list[TokenSpan] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    is_rebuilt: bool = True
    draft: str | None = None
    loaded: Loaded | None = None
    context_full: str | None = None

    def add_fault(self, error: StoreError) -> None:
        """Add a notice that the database could not be read or written."""
        self.notices.append(Notice(str(error), error.title, "error"))

    def take(self) -> ChatUpdate:
        """All that was collected since the last call."""
        update = ChatUpdate(
            "" if self.is_rebuilt else "".join(self.text),
            self.is_rebuilt,
            tuple(self.notices),
            self.draft,
            self.loaded,
            () if self.is_rebuilt else tuple(self.spans),
            self.context_full,
        )
        self.text, self.spans, self.notices, self.is_rebuilt = [], [], [], False
        self.draft = self.loaded = self.context_full = None
        return update


class EngineLease(Protocol):
    """Uses the engine for replies of its own while the conversation waits."""

    @property
    def is_running(self) -> bool:
        """A reply of its own is under way."""
        ...

    def revoke(self, why: str) -> None:
        """End it: no event of its replies comes any more."""
        ...

    def take(self, event: Event) -> bool:
        """Handle an event of its own replies; False for any other, which is the conversation's."""
        ...
