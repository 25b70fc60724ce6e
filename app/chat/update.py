"""What the controller tells the screen after a poll."""

from dataclasses import dataclass
from typing import Literal

from app.chat.reply import TokenSpan
from engine.events import Loaded

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to tell the user once."""

    message: str
    title: str = ""
    severity: Severity = "information"
    is_in_transcript: bool = False
    """It stands in the transcript too, so that only who does not see that needs it."""


@dataclass(frozen=True, slots=True)
class ChatUpdate:
    """What one poll changed."""

    text: str = ""
    """What the live reply got."""
    is_rebuilt: bool = False
    """The entries are others than before."""
    notices: tuple[Notice, ...] = ()
    draft: str | None = None
    """A text that was sent and comes back, because the engine refused it."""
    loaded: Loaded | None = None
    spans: tuple[TokenSpan, ...] = ()
    """The text by where its tokens came from."""
    context_full: str | None = None
    """Why the shown chat's reply has no room: the user has to choose what goes."""
