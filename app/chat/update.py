"""Changes since the last poll, and who may use the engine apart from the chats."""

from dataclasses import dataclass, field
from typing import Literal, Protocol

from app.chat.spans import TokenSpan
from engine.events import Event, Loaded

PRELOAD, SUMMARY = -1, -2
"""Ids of replies that are no message, whose id is theirs: the prefill of a new chat's system
prompt, and a summary. Those of a comparison are `engine.experiment.comparison.REPLY_IDS`."""

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user is shown once."""

    message: str
    title: str = ""
    severity: Severity = "information"
    is_in_transcript: bool = False
    """The transcript shows it too: who sees that needs no notice."""


@dataclass(slots=True)
class ChatUpdate:
    """What changed since the last poll."""

    text: str = ""
    """New text of the live reply."""
    is_rebuilt: bool = False
    """The entries are others than before."""
    notices: list[Notice] = field(default_factory=list)
    returned_text: str | None = None
    """A message that the engine refused."""
    loaded: Loaded | None = None
    spans: list[TokenSpan] = field(default_factory=list)
    """The new text by where its tokens came from."""
    context_full: str | None = None
    """Why the shown chat's reply does not fit: the user has to choose what goes."""


class EngineLease(Protocol):
    """Uses the engine for replies of its own while the conversation waits."""

    @property
    def is_running(self) -> bool:
        """A reply of its own is being made."""
        ...

    def revoke(self, why: str) -> None:
        """End it: no event of its replies comes any more."""
        ...

    def take(self, event: Event) -> bool:
        """Handle an event of its own replies; False for any other, which is the conversation's."""
        ...
