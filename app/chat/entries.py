"""Stored messages as a prompt, and as entries of the transcript."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from app import format as fmt
from app.chat.spans import TokenSpan
from app.store.records import StoredMessage
from engine.events import FinishReason, Thinking
from engine.requests import Message

SUMMARY_BEGINS = "Summary of the conversation before this point:"
WHOLE = (FinishReason.END, FinishReason.STOP_STRING, FinishReason.STOP_TOKEN)
"""Finish reasons of replies that are complete."""
CUT_BY_CRASH = "engine stopped"
"""Finish reason of a reply that the engine's end cut off."""
CUT_BY_CLOSE = "kvchat was closed"
"""Finish reason of a reply that was under way when the user left."""
FAILED = "failed"
"""Finish reason of a reply that a fault cut off while the engine went on."""
DIVIDER_KEY = -(1 << 40)
"""Key of the divider, below that of every note."""
CONTINUES = "{composer-send} in the empty composer continues the reply"
"""After a reply that was cut."""
MAKES_SPACE = "{composer-send} shows ways to shorten the chat"
"""After a reply that did not fit."""
ANSWERS = "not answered yet; {composer-send} sends the question"
"""After a question that has no reply."""


def prompt_messages(
    system_prompt: str,
    path: Sequence[StoredMessage],
    *,
    context_start: int | None = None,
    summary: str | None = None,
) -> tuple[Message, ...]:
    """The messages of a request from the root of a chat on; those without text are left out.

    The model sees them from `context_start` on, or all if that is not on the path, and the summary
    in place of the others.
    """
    n_hidden = index_of(context_start, path)
    note = f"{SUMMARY_BEGINS}\n{summary.strip()}" if n_hidden and summary else ""
    prompt = system_prompt.strip()
    # Without a system prompt the summary goes before the first question: some templates know no
    # system message.
    head = "\n\n".join(filter(None, (prompt, note))) if prompt else ""
    messages = [Message("system", head)] if head else []
    pending = "" if prompt else note
    for stored in path[n_hidden:]:
        if not stored.content:
            continue
        message = Message(stored.role, stored.content, stored.token_ids, stored.vocabulary_id)
        if pending:
            message = Message(message.role, f"{pending}\n\n{message.content}")
            pending = ""
        if messages and messages[-1].role == message.role:
            # Many templates refuse two turns of one speaker: a reply between them never began.
            message = Message(message.role, f"{messages.pop().content}\n\n{message.content}")
        messages.append(message)
    return tuple(messages)


def with_question(messages: Sequence[Message], question: str) -> tuple[Message, ...]:
    """The messages of a request and one question more."""
    if messages and messages[-1].role == "user":
        # Many templates refuse two turns of one speaker.
        return (*messages[:-1], Message("user", f"{messages[-1].content}\n\n{question}"))
    return (*messages, Message("user", question))


def index_of(message_id: int | None, path: Sequence[StoredMessage]) -> int:
    """Index of a message on a path; 0 if the message is not on the path."""
    if message_id is None:
        return 0
    return next((i for i, message in enumerate(path) if message.id == message_id), 0)


def is_cut(message: StoredMessage) -> bool:
    """Whether this is a reply that ended before the model was done."""
    return message.role == "assistant" and message.finish_reason not in WHOLE


def did_not_fit(message: StoredMessage) -> bool:
    """Whether this is a reply that ended, or never began, because the context was full."""
    return message.role == "assistant" and message.finish_reason == FinishReason.CONTEXT


class Speaker(StrEnum):
    """Author of an entry."""

    USER = "user"
    MODEL = "model"
    NOTE = "note"
    """kvchat's own text; never sent to the model and not saved."""
    DIVIDER = "divider"
    """The line above the first message that the model sees; may hold a summary."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One message, note or divider."""

    key: int
    """The id of the message; notes count down from -1."""
    speaker: Speaker
    content: str
    variant: int = 1
    n_variants: int = 1
    ending: str = ""
    """How the reply ended, how fast it was, and what a key would do."""
    is_live: bool = False
    spans: tuple[TokenSpan, ...] = ()
    """The content by where its tokens came from; empty if unknown."""
    thinking: str = ""
    """How long a reply thought, if measured."""


def divider(summary: str | None) -> Entry:
    """The line above the first message that the model sees, with the summary of those above."""
    return Entry(DIVIDER_KEY, Speaker.DIVIDER, summary or "")


def entry_of(message: StoredMessage, variants: list[int]) -> Entry:
    """A stored message as an entry; `variants` are its siblings and itself, oldest first."""
    is_reply = message.role == "assistant"
    return Entry(
        key=message.id,
        speaker=Speaker.MODEL if is_reply else Speaker.USER,
        content=message.content,
        variant=variants.index(message.id) + 1,
        n_variants=len(variants),
        ending=ending_of(message) if is_reply else "",
        thinking=thinking_of(message.stats or {}),
    )


def hint_of(last: StoredMessage) -> str:
    """Hint about what enter does with the unfinished last message of a chat."""
    if did_not_fit(last):
        return MAKES_SPACE
    return CONTINUES if is_cut(last) else ANSWERS


def ending_of(message: StoredMessage) -> str:
    """End and figures of a reply, such as `stopped · 412 tokens · 74 tok/s`."""
    return " · ".join([*_ending(message.finish_reason), *_figures(message)])


def thinking_of(stats: dict[str, object]) -> str:
    """How long a reply thought, such as `thought for 12 s, 412 tokens`; empty if it did not."""
    n_tokens, elapsed_s = stats.get("n_thinking"), _number(stats, "thinking_s")
    if not isinstance(n_tokens, int) or not n_tokens or elapsed_s is None:
        return ""
    return thinking_text(Thinking(n_tokens, elapsed_s, is_over=True))


def thinking_text(thinking: Thinking) -> str:
    """Time and tokens of a reply's thinking, and why kvchat closed it."""
    what = "thought for" if thinking.is_over else "thinking:"
    text = f"{what} {fmt.seconds(thinking.elapsed_s)}, {fmt.counted(thinking.n_tokens, 'token')}"
    return f"{text}; ended because {thinking.note}" if thinking.note else text


def _ending(reason: str | None) -> list[str]:
    match reason:
        case FinishReason.END | FinishReason.STOP_STRING | FinishReason.STOP_TOKEN:
            return []
        case FinishReason.CANCELLED:
            return ["stopped"]
        case FinishReason.LENGTH:
            return ["cut off at the token limit"]
        case FinishReason.CONTEXT:
            return ["cut off: the context is full"]
        case None:
            return ["cut off: kvchat ended during the reply"]
        case _:
            return [f"cut off: {reason}"]


def _figures(message: StoredMessage) -> list[str]:
    stats, figures, tokens = message.stats or {}, [], message.token_ids
    # Tokens of the text, without the end token. A text without ids is of a server.
    is_named = tokens is not None and (tokens or not message.content)
    n = len(tokens or ()) if is_named else stats.get("n_emitted")
    if stats and isinstance(n, int):
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


class ChatNotes:
    """kvchat's notes in a transcript, each after a message or at its start."""

    def __init__(self) -> None:
        self.is_changed = False
        self._notes: list[tuple[int | None, Entry]] = []

    def add(self, message_id: int | None, text: str) -> Entry:
        """Add a note after a message, or at the start."""
        lowest = min((entry.key for _, entry in self._notes), default=0)
        note = Entry(lowest - 1, Speaker.NOTE, text)
        self._notes.append((message_id, note))
        self.is_changed = True
        return note

    def remove(self, note: Entry | None) -> None:
        self._notes = [each for each in self._notes if each[1] is not note]
        self.is_changed = True

    def toggle(self, message_id: int, text: str) -> None:
        """Add a note after a message, or remove the note that is there already."""
        found = self.find(message_id, text)
        if found is None:
            self.add(message_id, text)
        else:
            self.remove(found)

    def find(self, message_id: int, text: str) -> Entry | None:
        """The note with a text after a message."""
        notes = self.by_message()[message_id]
        return next((note for note in notes if note.content == text), None)

    def by_message(self) -> Mapping[int | None, list[Entry]]:
        notes: dict[int | None, list[Entry]] = defaultdict(list)
        for message_id, note in self._notes:
            notes[message_id].append(note)
        return notes
