"""Changes of a conversation since the last poll, and ids of replies that are no messages."""

from dataclasses import dataclass, field
from typing import Literal

from app.chat.spans import TokenSpan
from engine.events import Loaded

PRELOAD, SUMMARY = -1, -2
"""Ids of the prefill of a new chat's system prompt, and of a summary.

A reply of a chat has the id of its message; those of a comparison are
`engine.experiment.comparison.REPLY_IDS`.
"""

Severity = Literal["information", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that the user is shown once."""

    message: str
    title: str = ""
    severity: Severity = "information"
    is_in_transcript: bool = False
    """Whether the transcript shows it too, so that a visible transcript needs no notice."""


@dataclass(slots=True)
class ChatUpdate:
    """Changes since the last poll."""

    spans: list[TokenSpan] = field(default_factory=list)
    """New text of the live reply by the origin of its tokens."""
    is_rebuilt: bool = False
    """Whether the entries are others than before."""
    notices: list[Notice] = field(default_factory=list)
    returned_text: str | None = None
    """A message that the engine refused."""
    loaded: Loaded | None = None
    context_full: str | None = None
    """Why the shown chat's reply does not fit: the user has to choose what to drop."""

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)
