"""Text around the composer: queued messages and attachments above it, size and esc below.

Texts name keys by their ids, as `with_keys` takes them.
"""

from app import format as fmt
from app.chat.attachments import in_short, line_count
from app.chat.conversation import Conversation
from app.chat.outbox import Outbox, Part, QueuedMessage
from app.render.lines import Line, Run, spread
from app.sanitize import one_line
from engine.images import images_in

MAX_LINES = 5
"""Lines above the composer."""
MIN_SHOWN_TOKENS = 100
"""Tokens from which the frame shows the size of a text; the status line always does."""


def lines_above(outbox: Outbox, conversation: Conversation, width: int) -> list[Line]:
    """A line for each queued message, paste and file, the newest last."""
    counts = conversation.counts
    lines = [_queued_line(i, message, width) for i, message in enumerate(outbox.queued, 1)]
    for part in outbox.parts:
        n_tokens = counts.of(part.text)
        counted = "counting …" if counts.is_counting(part.text) else ""
        counted = counted if n_tokens is None else fmt.counted(n_tokens, "token")
        lines.append(_part_line(part, counted, width))
    n_above = len(lines) - MAX_LINES
    if n_above > 0:
        more = (Run(f"  {fmt.counted(n_above + 1, 'more line')} above", "muted"),)
        lines = [more, *lines[n_above + 1 :]]
    return lines


def _queued_line(number: int, message: QueuedMessage, width: int) -> Line:
    text = one_line(in_short(message.unsent.text)) or "continue the reply"
    label = "edit waits " if message.unsent.edited is not None else "waits "
    return spread((Run(f"  {label}", "accent"), Run(text)), (Run(f" {number}. ", "muted"),), width)


def _part_line(part: Part, counted: str, width: int) -> Line:
    label = Run(f"  {one_line(part.label)}  ", "accent")
    if part.problem:
        return spread((label, Run(part.problem, "bad")), (), width)
    size = f"{fmt.counted(line_count(part.text), 'line')}, "
    size += fmt.counted(len(part.text), "character")
    if images := images_in(part.text):
        size = f"image, {images[0].width} x {images[0].height}"
    size = size if part.text else "empty"
    return spread((label, Run(size, "muted")), (Run(f" {counted} ", "strong"),), width)


def title_above(outbox: Outbox) -> str:
    """The upper edge: how many messages wait and for what, or that a message is edited."""
    queued = outbox.queued
    if not queued:
        edits = "editing: {composer-send} sends the question or continues the reply"
        return edits if outbox.is_edit else ""
    n = f"{len(queued)} messages queued; the last is " if len(queued) > 1 else ""
    blocked_by = outbox.blocked_by(outbox.chat_id) or "its turn comes"
    return f"{n}{'sent' if queued[-1].unsent.text else 'continued'} when {blocked_by}"


def title_below(outbox: Outbox, conversation: Conversation) -> str:
    """The lower edge: the size of the text, and what esc does next."""
    n_queued = len(outbox.queued)
    esc = "{reply-stop} cancels the edit" if outbox.is_edit else ""
    if n_queued:
        what = "the message" if n_queued == 1 else "the last message"
        esc = f"{{reply-stop}} or {{composer-older}} unqueues {what}"
    elif conversation.live is not None:
        esc = "{reply-stop} stops the reply"
    size = _size(outbox.count()[0], conversation.n_free, conversation.n_ctx)
    return " · ".join(filter(None, (size, esc)))


def _size(n_tokens: int | None, n_free: int | None, n_ctx: int) -> str:
    if n_tokens is None or not n_ctx:
        return ""
    counted = fmt.counted(n_tokens, "token")
    if n_tokens >= n_ctx:
        return f"{counted}, but the context holds {fmt.count(n_ctx)}: shorten the message"
    if n_free is not None and n_tokens and n_tokens >= n_free:
        free = fmt.count(max(n_free, 0))
        return f"{counted}, but only {free} are free: {{composer-send}} offers to shorten the chat"
    return counted if n_tokens >= MIN_SHOWN_TOKENS else ""
