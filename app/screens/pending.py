"""What stands in the composer of each chat, and what waits there to be asked; no Textual here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app import format as fmt
from app.chat.trimming import MIN_BYTES_PER_TOKEN, is_surely_longer
from app.sanitize import visible
from app.store.records import Draft

Kind = Literal["text", "go on", "again"]
"""Of what is asked: a text of the user, that a reply goes on, one more reply."""

NOTHING = Draft()
MAX_LINE = 24
"""Cells of the first line of what waits."""
LONG_TEXT = 2000
"""Characters from which on the size of a text is shown."""
LONG_LINES = 8
"""Lines from which on the composer does not show all of them."""
_BEGINS: Mapping[Kind, str] = {"text": "sent", "go on": "goes on", "again": "answered again"}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Something to ask of the model in a chat."""

    chat_id: int | None
    """None is the new chat, which has no number before its first question is saved."""
    kind: Kind
    draft: Draft = NOTHING
    message_id: int | None = None
    """What is answered again; None is the last message."""


class Pending:
    """Drafts by chat, and what waits in all chats, in the order in which it was asked."""

    def __init__(self, drafts: Mapping[int | None, Draft] | None = None) -> None:
        self._drafts = dict(drafts or {})
        self.queue: list[Waiting] = []

    def keep(self, chat_id: int | None, draft: Draft) -> None:
        """Keep what stands in a chat's composer."""
        self._drafts.pop(chat_id, None)
        if draft:
            self._drafts[chat_id] = draft

    def draft(self, chat_id: int | None) -> Draft:
        """What stands in a chat's composer."""
        return self._drafts.get(chat_id, Draft())

    def add(self, request: Waiting) -> None:
        """Let a request wait; one that has no text waits once."""
        if request.kind == "text" or request not in self.queue:
            self.queue.append(request)

    def of(self, chat_id: int | None) -> list[Waiting]:
        """What waits in a chat."""
        return [request for request in self.queue if request.chat_id == chat_id]

    def take_newest(self, chat_id: int | None) -> Draft:
        """Take the newest request of a chat out of the queue; there must be one."""
        request = self.of(chat_id)[-1]
        self.queue.remove(request)
        return request.draft

    def take_all(self, chat_id: int | None) -> Draft:
        """Take what waits in a chat out of the queue."""
        taken = self.of(chat_id)
        self.queue = [request for request in self.queue if request.chat_id != chat_id]
        return together(request.draft for request in taken)

    def move(self, old: int | None, new: int | None) -> None:
        """Let what waits in one chat wait in another: the new chat has got its number."""
        self.queue = [replace(r, chat_id=new) if r.chat_id == old else r for r in self.queue]

    def unsent(self) -> dict[int | None, Draft]:
        """All texts by chat, those that wait first: what is to outlive the program."""
        chats = {*self._drafts, *(request.chat_id for request in self.queue)}
        texts = {c: together([*(r.draft for r in self.of(c)), self.draft(c)]) for c in chats}
        return {chat_id: draft for chat_id, draft in texts.items() if draft}


def together(drafts: Iterable[Draft]) -> Draft:
    """Several drafts as one."""
    whole = Draft()
    for draft in drafts:
        whole = whole.and_then(draft)
    return whole


# --- what the composer's frame says ---


def state_text(waiting: Sequence[Waiting], awaited: str, *, is_edit: bool) -> str:
    """The upper edge: what waits and for what, or that a question is edited."""
    if not waiting:
        return "editing a question: enter asks it anew" if is_edit else ""
    last = waiting[-1]
    n = f"{len(waiting)} wait, the last " if len(waiting) > 1 else ""
    line = f": “{_first_line(last.draft.text)}”" if last.draft.text else ""
    return f"{n}{_BEGINS[last.kind]} when {awaited}{line}"


def esc_text(waiting: Sequence[Waiting], *, is_replying: bool, is_edit: bool) -> str:
    """The lower edge: what esc does next."""
    if waiting:
        return "esc takes it back" if len(waiting) == 1 else "esc takes the last back"
    if is_replying:
        return "esc stops the reply"
    return "esc leaves the edit" if is_edit else ""


def size_text(text: str, n_ctx: int | None) -> str:
    """The size of a long text, and whether it is more than the context holds.

    Tokens are not told: only the engine knows them, and a byte or eight may be one.

    Args:
        text: What stands in the composer.
        n_ctx: Cells of the context, None before a model is loaded.
    """
    n_lines = text.count("\n") + 1
    if len(text) < LONG_TEXT and n_lines < LONG_LINES:
        return ""
    size = f"{fmt.counted(n_lines, 'line')}, {fmt.counted(len(text), 'character')}"
    if n_ctx is None or len(text.encode()) <= n_ctx * MIN_BYTES_PER_TOKEN:
        return size
    more = "more" if is_surely_longer(text, n_ctx) else "perhaps more"
    return f"{size}, {more} than the context of {fmt.count(n_ctx)}"


def _first_line(text: str) -> str:
    line = visible(next((part.strip() for part in text.splitlines() if part.strip()), ""))
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"
