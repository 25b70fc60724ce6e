"""What an empty chat offers: the chats used last, and three examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from textual.message import Message

from app.render.chat_list import when_text
from app.render.lines import Line, Run, clipped
from app.sanitize import one_line
from app.store.records import Chat
from app.widgets.select_list import Row, SelectList

N_RECENT = 5
EXAMPLES = (
    ("explain", "Explain what a KV cache is to somebody who writes Python, in ten sentences."),
    ("rewrite", "Rewrite this so that a stranger understands it at once:\n\n"),
    ("a file", "What does @README.md promise, and to whom? Answer with a list of five points."),
)
"""A word, and the question that it stands for."""
LABEL_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Example:
    """A question to begin with."""

    text: str


class BeginningList(SelectList):
    """Recent chats and examples; a chosen row is told with its key."""

    @dataclass
    class Chosen(Message):
        """A row was taken."""

        key: object
        """The id of a chat, or an `Example`."""

    def offer(self, recent: Sequence[Chat]) -> None:
        """Show the chats used last, and the examples."""
        rows = beginning_rows(recent, datetime.now())
        self.show_rows(rows, None if self.has_focus else rows[0].key)

    def action_pick(self) -> None:
        """Take the marked row."""
        if self.rows and self.rows[self.index].is_enabled:
            self.post_message(self.Chosen(self.rows[self.index].key))


def beginning_rows(recent: Sequence[Chat], now: datetime) -> list[Row[object]]:
    """The rows: chats first, then examples."""
    rows: list[Row[object]] = [
        Row(chat.id, partial(_line, when_text(chat.updated_at, now), chat.title, ""))
        for chat in recent[:N_RECENT]
    ]
    rows += [Row(Example(text), partial(_line, word, text, "muted")) for word, text in EXAMPLES]
    return rows


def _line(label: str, text: str, style: str, width: int) -> Line:
    return clipped((Run(f"{label:<{LABEL_WIDTH}}", "accent"), Run(one_line(text), style)), width)
