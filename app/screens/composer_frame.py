"""The frame of the composer: queued messages and attachments above it, size and esc below.

Texts name keys by their ids, as `with_keys` takes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.content import Content

from app import format as fmt
from app.bindings import with_keys
from app.chat.attachments import (
    LONG_LINES,
    LONG_TEXT,
    AttachmentError,
    in_short,
    is_file,
    line_count,
    names_in,
    pieces,
    read_file,
    without_marks,
)
from app.chat.context import MIN_BYTES_PER_TOKEN, is_surely_longer
from app.chat.conversation import Conversation
from app.chat.outbox import Outbox, QueuedMessage
from app.render.lines import Line, Run, spread
from app.sanitize import one_line
from app.widgets.composer import Composer
from app.widgets.ink import InkLines
from engine.images import images_in

MAX_LINES = 5
"""Lines above the composer."""
MIN_SHOWN_TOKENS = 100
"""Tokens from which the frame shows the size of a text; the status line always does."""


@dataclass(frozen=True, slots=True)
class Part:
    """A paste or file that goes with a message."""

    label: str
    """`paste 1`, or the name of a file."""
    text: str = ""
    problem: str = ""
    """Why it cannot go with it."""


class ComposerFrame:
    """Measures what is written and shows it around the composer.

    Attributes:
        n_tokens: Tokens of the message; None until they are counted, or if nobody can count.
        is_counting: Whether the engine still counts.
    """

    def __init__(
        self, composer: Composer, above: InkLines, outbox: Outbox, conversation: Conversation
    ) -> None:
        self.n_tokens: int | None = 0
        self.is_counting = False
        self._composer = composer
        self._above = above
        self._outbox = outbox
        self._conversation = conversation
        self._typed = ""
        self._parts: list[Part] = []
        self._files: dict[str, Part] = {}
        """Files that the text names, as they were read when their names were complete."""

    @property
    def is_too_long(self) -> bool:
        """Whether the message is longer than the whole context."""
        return bool(self._n_ctx) and (self.n_tokens or 0) >= (self._n_ctx or 0)

    @property
    def _n_ctx(self) -> int | None:
        loaded = self._conversation.loaded
        return loaded.n_ctx if loaded else None

    def measure(self) -> None:
        """Read the files that the text names."""
        unsent, folder = self._outbox.unsent, self._outbox.folder
        self._typed = "".join(part for part, is_paste in pieces(unsent.text) if not is_paste)
        named = names_in(unsent.text) if self._outbox.takes_files(unsent) else ()
        names = [name for name in named if is_file(name, folder)]
        self._files = {name: self._files.get(name) or self._read(name) for name in names}
        self._parts = [*(Part(*paste) for paste in self._composer.pastes), *self._files.values()]

    def _read(self, name: str) -> Part:
        try:
            file = read_file(name, self._outbox.folder)
        except AttachmentError as error:
            return Part(f"@{name}", problem=str(error))
        if file.image is not None and (blindness := self._conversation.blindness):
            return Part(f"@{name}", problem=f"an image, and {blindness}")
        return Part(f"@{name}", file.text)

    def present(self) -> None:
        """Show what waits, what goes with the text, its size, and what esc does."""
        composer, conversation, outbox = self._composer, self._conversation, self._outbox
        counts, queued = conversation.counts, outbox.queued
        texts = (self._typed, *(part.text for part in self._parts))
        counted = [counts.of(text) for text in texts]
        self.is_counting = any(map(counts.is_counting, texts))
        self.n_tokens = None if None in counted else sum(n for n in counted if n is not None)
        parts = [
            (part, counts.of(part.text), counts.is_counting(part.text)) for part in self._parts
        ]
        lines = lines_above(queued, parts, composer.outer_size.width)
        if len(lines) != len(self._above.lines):
            self._above.styles.height = len(lines)
        self._above.show(lines)
        blocked_by = outbox.blocked_by(outbox.chat_id) or "its turn comes"
        is_replying = conversation.live is not None
        size = size_text(outbox.unsent.text, self.n_tokens, conversation.n_free, self._n_ctx)
        esc = esc_text(len(queued), is_replying=is_replying, is_edit=outbox.is_edit)
        above = with_keys(state_text(queued, blocked_by, is_edit=outbox.is_edit), composer.app)
        below = with_keys(" · ".join(filter(None, (size, esc))), composer.app)
        shown = (str(composer.border_title or ""), str(composer.border_subtitle or ""))
        if (above, below) != shown:
            composer.border_title, composer.border_subtitle = Content(above), Content(below)


def lines_above(
    queued: Sequence[QueuedMessage], parts: Sequence[tuple[Part, int | None, bool]], width: int
) -> list[Line]:
    """A line for each queued message, paste and file, the newest last.

    Each part comes with its tokens, if known, and whether they are still counted.
    """
    lines = [_queued_line(i, message, width) for i, message in enumerate(queued, 1)]
    lines += [_part_line(*part, width) for part in parts]
    n_above = len(lines) - MAX_LINES
    if n_above > 0:
        more = (Run(f"  {fmt.counted(n_above + 1, 'more line')} above", "muted"),)
        lines = [more, *lines[n_above + 1 :]]
    return lines


def _queued_line(number: int, message: QueuedMessage, width: int) -> Line:
    text = one_line(in_short(message.unsent.text)) or "continue the reply"
    label = "edit waits " if message.unsent.edited is not None else "waits "
    return spread((Run(f"  {label}", "accent"), Run(text)), (Run(f" {number}. ", "muted"),), width)


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


def state_text(queued: Sequence[QueuedMessage], blocked_by: str, *, is_edit: bool) -> str:
    """The upper edge: how many messages wait and for what, or that a message is edited."""
    if not queued:
        return (
            "editing: {composer-send} sends the question or continues the reply" if is_edit else ""
        )
    n = f"{len(queued)} messages queued; the last is " if len(queued) > 1 else ""
    return f"{n}{'sent' if queued[-1].unsent.text else 'continued'} when {blocked_by}"


def esc_text(n_queued: int, *, is_replying: bool, is_edit: bool) -> str:
    """The lower edge: what esc does next."""
    if n_queued:
        what = "the message" if n_queued == 1 else "the last message"
        return f"{{reply-stop}} or {{composer-older}} unqueues {what}"
    if is_replying:
        return "{reply-stop} stops the reply"
    return "{reply-stop} cancels the edit" if is_edit else ""


def size_text(text: str, n_tokens: int | None, n_free: int | None, n_ctx: int | None) -> str:
    """The size of a written text, and whether it fits.

    Args:
        text: The text with its pastes.
        n_tokens: Its tokens with files; None before the engine has counted them.
        n_free: Free cells of the context, if known.
        n_ctx: Cells of the context, None before a model is loaded.
    """
    if n_tokens is None or n_ctx is None:
        return _size_in_characters(text, n_ctx)
    counted = fmt.counted(n_tokens, "token")
    if n_tokens >= n_ctx:
        return f"{counted}, but the context holds {fmt.count(n_ctx)}: shorten the message"
    if n_free is not None and n_tokens and n_tokens >= n_free:
        free = fmt.count(max(n_free, 0))
        return f"{counted}, but only {free} are free: {{composer-send}} offers to shorten the chat"
    return counted if n_tokens >= MIN_SHOWN_TOKENS else ""


def _size_in_characters(text: str, n_ctx: int | None) -> str:
    text = without_marks(text)
    n_lines = text.count("\n") + 1
    if len(text) < LONG_TEXT and n_lines < LONG_LINES:
        return ""
    size = f"{fmt.counted(n_lines, 'line')}, {fmt.counted(len(text), 'character')}"
    if n_ctx is None or len(text.encode()) <= n_ctx * MIN_BYTES_PER_TOKEN:
        return size
    more = "more" if is_surely_longer(text, n_ctx) else "perhaps more"
    return f"{size}, {more} than fit into the context of {fmt.count(n_ctx)} tokens"
