"""The messages of a chat as they are shown, asked about and gone on with."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app import format as fmt
from app.chat.reply import TokenSpan
from app.store.records import StoredMessage
from engine.errors import EngineError
from engine.events import FinishReason
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
            # Many templates refuse two turns of one speaker: a reply between was never resumed.
            message = Message(message.role, f"{messages.pop().content}\n\n{message.content}")
        messages.append(message)
    return tuple(messages)


def place_of(kept_from: int | None, path: Sequence[StoredMessage]) -> int:
    """Give how many messages at the start of a path the model does not see."""
    if kept_from is None:
        return 0
    return next((i for i, message in enumerate(path) if message.id == kept_from), 0)


WHOLE = (FinishReason.END, FinishReason.STOP_STRING)
"""How replies end that have nothing to go on with."""


class CannotContinueError(EngineError):
    """A reply that was cut cannot go on with the loaded model."""

    title = "The reply cannot go on"


def is_cut(message: StoredMessage) -> bool:
    """Whether this is a reply that ended before the model was done."""
    return message.role == "assistant" and message.finish_reason not in WHOLE


def is_out_of_room(message: StoredMessage) -> bool:
    """Whether this is a reply that ended, or never began, because the context was full."""
    return message.role == "assistant" and message.finish_reason == FinishReason.CONTEXT


def can_go_on(message: StoredMessage, vocabulary_id: str | None) -> bool:
    """Whether a reply that was cut can go on with a model of this vocabulary; None is any."""
    if not message.content:
        return True
    is_known = bool(message.token_ids) and message.vocabulary_id is not None
    return is_known and vocabulary_id in (None, message.vocabulary_id)


def known_tokens(message: StoredMessage, vocabulary_id: str) -> tuple[int, ...]:
    """Give the tokens that a reply goes on behind; none where it holds no text yet.

    Args:
        message: The reply.
        vocabulary_id: The vocabulary of the loaded model.

    Raises:
        CannotContinueError: If its tokens are not known, or are those of another vocabulary.
    """
    if not message.content:
        return ()
    if not message.token_ids or message.vocabulary_id is None:
        raise CannotContinueError(
            "which tokens this reply has was not kept, only its text: ctrl+g answers once more"
        )
    if message.vocabulary_id != vocabulary_id:
        by = f" by {message.model_name}" if message.model_name else ""
        raise CannotContinueError(
            f"it was written{by} in another vocabulary than the loaded model has: load that model "
            "(ctrl+o), or answer once more (ctrl+g)"
        )
    return message.token_ids


CUT_BY_CRASH = "engine stopped"
"""Finish reason of a reply that the engine's end cut off."""
CUT_BY_CLOSE = "kvchat was closed"
"""Finish reason of a reply that was under way when the user left."""
FAILED = "failed"
"""Finish reason of a reply that a fault cut off while the engine went on."""


DIVIDER_KEY = -(1 << 40)


class Speaker(StrEnum):
    """Whose words an entry holds."""

    USER = "user"
    MODEL = "model"
    NOTE = "note"
    """kvchat's own words between the messages; never sent to the model and not saved."""
    DIVIDER = "divider"
    """Stands between what the model no longer sees and the rest; may hold a summary."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message or aside."""

    key: int
    """The id of the message; asides count down from -1, a divider has `DIVIDER_KEY`."""
    speaker: Speaker
    content: str
    variant: int = 1
    n_variants: int = 1
    ending: str = ""
    """How the reply ended and how fast it was."""
    is_live: bool = False
    spans: tuple[TokenSpan, ...] = ()
    """The content by where its tokens came from; empty where that is not known any more."""


def divider(summary: str | None) -> Entry:
    """What stands before the first message that the model sees.

    Args:
        summary: What it sees in place of those above, if anything.
    """
    return Entry(DIVIDER_KEY, Speaker.DIVIDER, summary or "")


def entry_of(message: StoredMessage, variants: list[int], *, is_live: bool = False) -> Entry:
    """A stored message as an entry.

    Args:
        message: The message.
        variants: Ids of the message and its siblings, oldest first.
        is_live: Whether its reply is being written now.
    """
    is_reply = message.role == "assistant"
    return Entry(
        key=message.id,
        speaker=Speaker.MODEL if is_reply else Speaker.USER,
        content=message.content,
        variant=variants.index(message.id) + 1,
        n_variants=len(variants),
        ending=ending_of(message) if is_reply and not is_live else "",
        is_live=is_live,
    )


def ending_of(message: StoredMessage) -> str:
    """How a reply ended and how fast it was, such as `stopped · 412 tokens · 74 tok/s`."""
    return " · ".join([*_ending(message.finish_reason), *_figures(message.stats or {})])


def _ending(reason: str | None) -> list[str]:
    match reason:
        case FinishReason.END | FinishReason.STOP_STRING:
            return []
        case FinishReason.CANCELLED:
            return ["stopped"]
        case FinishReason.LENGTH:
            return ["cut at the largest number of tokens"]
        case FinishReason.CONTEXT:
            return ["cut: the context is full"]
        case None:
            return ["cut: kvchat was ended while it came"]
        case _:
            return [f"cut: {reason}"]


def _figures(stats: dict[str, object]) -> list[str]:
    figures: list[str] = []
    if isinstance(n := stats.get("n_emitted"), int):
        figures.append(fmt.counted(n, "token"))
    tps, spread = _number(stats, "decode_tps"), _number(stats, "plain_spread")
    if tps is not None:
        figures.append(fmt.speed(tps, spread))
    n_verified, n_accepted = stats.get("n_verified"), stats.get("n_accepted")
    if isinstance(n_verified, int) and isinstance(n_accepted, int) and n_verified:
        figures.append(f"accept {fmt.acceptance(n_accepted, n_verified)}")
    gained = (_number(stats, name) for name in ("speedup", "saved_s", "saved_error_s"))
    if (speedup := fmt.measured_speedup(*gained)) is not None:
        figures.append(speedup)
    if (first := _number(stats, "first_token_s")) is not None:
        figures.append(f"first token {fmt.seconds(first)}")
    return figures


def _number(stats: dict[str, object], name: str) -> float | None:
    value = stats.get(name)
    return float(value) if isinstance(value, int | float) else None
