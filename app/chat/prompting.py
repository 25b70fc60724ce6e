"""A stored conversation as the engine wants it, without what the model no longer sees."""

from collections.abc import Sequence

from app.store.records import StoredMessage
from engine.requests import Message

SUMMARY_BEGINS = "Summary of the conversation before this point:"


def conversation(
    system_prompt: str,
    path: Sequence[StoredMessage],
    *,
    kept_from: int | None = None,
    summary: str | None = None,
) -> tuple[Message, ...]:
    """Give the messages of a request.

    Args:
        system_prompt: Instruction at the start; blanks alone are none.
        path: The stored messages from the root on; those without text are left out.
        kept_from: First message that the model sees; all are seen where it is not on the path.
        summary: What stands for the messages before that one.
    """
    place = place_of(kept_from, path)
    note = f"{SUMMARY_BEGINS}\n{summary.strip()}" if place and summary else ""
    prompt = system_prompt.strip()
    # Without a system prompt the summary goes before the first question: some templates know no
    # system message.
    head = "\n\n".join(filter(None, (prompt, note))) if prompt else ""
    messages = [Message("system", head)] if head else []
    pending = "" if prompt else note
    for stored in path[place:]:
        if not stored.content:
            continue
        message = Message(stored.role, stored.content, stored.token_ids, stored.vocabulary_id)
        if pending:
            message = Message(message.role, f"{pending}\n\n{message.content}")
            pending = ""
        if messages and messages[-1].role == message.role:
            # Many templates refuse two turns of one speaker: a reply between was never begun.
            message = Message(message.role, f"{messages.pop().content}\n\n{message.content}")
        messages.append(message)
    return tuple(messages)


def place_of(kept_from: int | None, path: Sequence[StoredMessage]) -> int:
    """Give how many messages at the start of a path the model does not see."""
    if kept_from is None:
        return 0
    return next((i for i, message in enumerate(path) if message.id == kept_from), 0)
