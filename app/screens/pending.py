"""What stands in the composer of each chat, and what waits there to be asked; no Textual here.

Texts name keys by their ids, as `with_keys` takes them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app import format as fmt
from app.chat.attachments import LONG_LINES, LONG_TEXT, in_short, line_count, without_marks
from app.chat.trimming import MIN_BYTES_PER_TOKEN, is_surely_longer
from app.render.lines import Line, Run, spread
from app.sanitize import one_line
from app.store.records import UnsentText
from engine.images import images_in

Kind = Literal["text", "go on", "again"]
"""Of what is asked: a text of the user, that a reply goes on, one more reply."""

NOTHING = UnsentText()
MAX_BESIDE = 5
"""Lines above the composer."""
TOLD_TOKENS = 100
"""Tokens of a text from which on the composer's frame tells them; the status line always does."""
_BEGINS: Mapping[Kind, str] = {"text": "sent", "go on": "continued", "again": "answered again"}
_MEANS: Mapping[Kind, str] = {"text": "", "go on": "continue the reply", "again": "another reply"}


@dataclass(frozen=True, slots=True)
class QueuedQuestion:
    """Something to ask of the model in a chat."""

    chat_id: int | None
    """None is the new chat, which has no number before its first question is saved."""
    kind: Kind
    draft: UnsentText = NOTHING
    message_id: int | None = None
    """What is answered again; None is the last message."""


class Pending:
    """Drafts by chat, and what waits in all chats, in the order in which it was asked."""

    def __init__(self, drafts: Mapping[int | None, UnsentText] | None = None) -> None:
        self._drafts = dict(drafts or {})
        self.queue: list[QueuedQuestion] = []

    def keep(self, chat_id: int | None, draft: UnsentText) -> None:
        """Keep what stands in a chat's composer."""
        self._drafts.pop(chat_id, None)
        if draft:
            self._drafts[chat_id] = draft

    def draft(self, chat_id: int | None) -> UnsentText:
        """What stands in a chat's composer."""
        return self._drafts.get(chat_id, UnsentText())

    def add(self, request: QueuedQuestion) -> None:
        """Let a request wait; one that has no text waits once."""
        if request.kind == "text" or request not in self.queue:
            self.queue.append(request)

    def of(self, chat_id: int | None) -> list[QueuedQuestion]:
        """What waits in a chat."""
        return [request for request in self.queue if request.chat_id == chat_id]

    def take_newest(self, chat_id: int | None) -> UnsentText:
        """Take the newest request of a chat out of the queue; there must be one."""
        request = self.of(chat_id)[-1]
        self.queue.remove(request)
        return request.draft

    def take_all(self, chat_id: int | None) -> UnsentText:
        """Take what waits in a chat out of the queue."""
        taken = self.of(chat_id)
        self.queue = [request for request in self.queue if request.chat_id != chat_id]
        return together(request.draft for request in taken)

    def move(self, old: int | None, new: int | None) -> None:
        """Let what is written and waits in one chat do so in another: a new one has a number."""
        self._drafts = {new if chat == old else chat: d for chat, d in self._drafts.items()}
        self.queue = [replace(r, chat_id=new) if r.chat_id == old else r for r in self.queue]

    def unsent(self) -> dict[int | None, UnsentText]:
        """All texts by chat, those that wait first: what is to outlive the program."""
        chats = {*self._drafts, *(request.chat_id for request in self.queue)}
        texts = {c: together([*(r.draft for r in self.of(c)), self.draft(c)]) for c in chats}
        return {chat_id: draft for chat_id, draft in texts.items() if draft}


def together(drafts: Iterable[UnsentText]) -> UnsentText:
    """Several drafts as one."""
    whole = UnsentText()
    for draft in drafts:
        whole = whole.and_then(draft)
    return whole


class InputHistory:
    """Questions that were asked before, walked through from the text that is written now."""

    def __init__(
        self, questions: Sequence[str], written: str, as_written: Callable[[str], str] = str
    ) -> None:
        """Stand at the text that is written.

        Args:
            questions: Newest first; each is shown once.
            written: What stands in the composer.
            as_written: Turns a question into what was typed, once it is shown.
        """
        self._questions = list(dict.fromkeys(filter(None, questions)))
        self._as_written = as_written
        self._texts = [written]
        self._index = 0

    @property
    def shown(self) -> str:
        """The text that the walk has come to."""
        return self._texts[self._index]

    def step(self, n: int) -> str | None:
        """Go so many texts back in time, or forward; None at either end."""
        index = self._index + n
        while index >= len(self._texts) and self._questions:
            text = self._as_written(self._questions.pop(0))
            if text and text not in self._texts:
                self._texts.append(text)
        if not 0 <= index < len(self._texts):
            return None
        self._index = index
        return self.shown


# --- what is said around the composer ---


@dataclass(frozen=True, slots=True)
class Part:
    """Something beside the typed words that goes with a message."""

    label: str
    """`paste 1`, or the name of a file."""
    text: str = ""
    problem: str = ""
    """Why it cannot go with it."""


def beside_lines(
    waiting: Sequence[QueuedQuestion],
    parts: Sequence[tuple[Part, int | None, bool]],
    width: int,
) -> list[Line]:
    """What waits and what goes with the message, a line each, the newest last.

    Args:
        waiting: What waits in the shown chat.
        parts: Pastes and files, their tokens if known, and whether they are still counted.
        width: Cells of a line.
    """
    lines = [_waiting_line(i, request, width) for i, request in enumerate(waiting, 1)]
    lines += [_part_line(*part, width) for part in parts]
    n_above = len(lines) - MAX_BESIDE
    if n_above > 0:
        more = (Run(f"  {fmt.counted(n_above + 1, 'more line')} above", "muted"),)
        lines = [more, *lines[n_above + 1 :]]
    return lines


def _waiting_line(number: int, request: QueuedQuestion, width: int) -> Line:
    said = one_line(in_short(request.draft.text)) or _MEANS[request.kind]
    begin = "edit waits " if request.draft.edited is not None else "waits "
    return spread((Run(f"  {begin}", "accent"), Run(said)), (Run(f" {number}. ", "muted"),), width)


def _part_line(part: Part, n_tokens: int | None, is_counting: bool, width: int) -> Line:
    label = Run(f"  {one_line(part.label)}  ", "accent")
    if part.problem:
        return spread((label, Run(part.problem, "bad")), (), width)
    size = f"{fmt.counted(line_count(part.text), 'line')}, "
    size += fmt.counted(len(part.text), "character")
    if not part.text:
        size = "empty"
    if images := images_in(part.text):
        size = f"image, {images[0].width} x {images[0].height}"
    counted = "counting …" if is_counting else ""
    if n_tokens is not None:
        counted = fmt.counted(n_tokens, "token")
    return spread((label, Run(size, "muted")), (Run(f" {counted} ", "strong"),), width)


def state_text(waiting: Sequence[QueuedQuestion], awaited: str, *, is_edit: bool) -> str:
    """The upper edge: how much waits and for what, or that a question is edited."""
    if not waiting:
        return (
            "editing: {composer-send} sends the question or continues the reply" if is_edit else ""
        )
    n = f"{len(waiting)} queued; the last is " if len(waiting) > 1 else ""
    return f"{n}{_BEGINS[waiting[-1].kind]} when {awaited}"


def esc_text(waiting: Sequence[QueuedQuestion], *, is_replying: bool, is_edit: bool) -> str:
    """The lower edge: what esc does next."""
    if waiting:
        what = "the message" if len(waiting) == 1 else "the last message"
        return f"{{reply-stop}} or {{composer-older}} unqueues {what}"
    if is_replying:
        return "{reply-stop} stops the reply"
    return "{reply-stop} cancels the edit" if is_edit else ""


def size_text(text: str, n_tokens: int | None, room: int | None, n_ctx: int | None) -> str:
    """The size of a written text, and whether it has room.

    Args:
        text: What stands in the composer, pastes and files with it.
        n_tokens: Its tokens; None before the engine has counted them.
        room: Cells of the context that are free; None where that is not known.
        n_ctx: Cells of the context, None before a model is loaded.
    """
    if n_tokens is None or n_ctx is None:
        return _size_in_characters(text, n_ctx)
    counted = fmt.counted(n_tokens, "token")
    if n_tokens >= n_ctx:
        return f"{counted}, more than the whole context of {fmt.count(n_ctx)}: cannot be sent"
    if room is not None and n_tokens and n_tokens >= room:
        free = fmt.count(max(room, 0))
        return f"{counted}, but only {free} are free: {{composer-send}} asks what to drop"
    return counted if n_tokens >= TOLD_TOKENS else ""


def _size_in_characters(text: str, n_ctx: int | None) -> str:
    text = without_marks(text)
    n_lines = text.count("\n") + 1
    if len(text) < LONG_TEXT and n_lines < LONG_LINES:
        return ""
    size = f"{fmt.counted(n_lines, 'line')}, {fmt.counted(len(text), 'character')}"
    if n_ctx is None or len(text.encode()) <= n_ctx * MIN_BYTES_PER_TOKEN:
        return size
    more = "more" if is_surely_longer(text, n_ctx) else "perhaps more"
    return f"{size}, {more} than the context of {fmt.count(n_ctx)}"
