"""Messages as the transcript shows them."""

from dataclasses import dataclass
from enum import StrEnum

from app.chat.pieces import Piece
from app.render import format as fmt
from app.store.records import StoredMessage
from engine.events import FinishReason

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
    ASIDE = "aside"
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
    note: str = ""
    """How the reply ended and how fast it was."""
    is_live: bool = False
    pieces: tuple[Piece, ...] = ()
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
        note=reply_note(message) if is_reply and not is_live else "",
        is_live=is_live,
    )


def reply_note(message: StoredMessage) -> str:
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
