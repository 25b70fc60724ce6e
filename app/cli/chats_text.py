"""What `kvchat chats` prints."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from app import format as fmt
from app.cli.console import Part, say
from app.render.reply_stats import reply_stats_text
from app.sanitize import one_line
from app.store.records import Chat, ChatSize, StoredMessage
from app.store.search import SearchHit
from engine.model.server_address import model_title

SPEAKERS = {"system": "system", "user": "you", "assistant": "assistant"}


def chat_values(chat: Chat, sizes: Mapping[int, ChatSize]) -> dict[str, object]:
    """A chat and its size as plain values."""
    return {**asdict(chat), **asdict(sizes.get(chat.id, ChatSize()))}


def print_chats(chats: Sequence[Chat], sizes: Mapping[int, ChatSize]) -> None:
    """Print one line for each chat."""
    from app.console import console, plain_table

    titles = ("id", "last used", "messages", "tokens", "model", "title")
    rows = [_cells(chat, sizes.get(chat.id, ChatSize())) for chat in chats]
    console().print(plain_table(titles, rows, numbers=("id", "messages", "tokens"), folds=False))


def _cells(chat: Chat, size: ChatSize) -> tuple[str, ...]:
    return (
        str(chat.id),
        time_text(chat.updated_at),
        fmt.count(size.n_messages),
        fmt.count(size.n_tokens),
        "-" if chat.model_path is None else one_line(model_title(chat.model_path)),
        one_line(chat.title),
    )


def print_chat(
    chat: Chat, path: Sequence[StoredMessage], size: ChatSize | None, *, with_stats: bool
) -> None:
    """Print a chat: what is known of it, and the messages of the branch that is shown."""
    size = size or ChatSize()
    say((one_line(chat.title), "bold"))
    facts = [f"chat {chat.id}", f"begun {time_text(chat.created_at)}"]
    if chat.model_path is not None:
        facts.append(one_line(model_title(chat.model_path)))
    facts.append(f"{fmt.count(len(path))} of {fmt.counted(size.n_messages, 'message')} shown")
    if chat.archived_at is not None:
        facts.append(f"archived {time_text(chat.archived_at)}")
    say((" · ".join(facts), "dim"))
    if chat.system_prompt:
        _print_part("system prompt", chat.system_prompt)
    for message in path:
        if message.id == chat.kept_from:
            say(("\n── the model no longer sees what is above ──", "dim"))
            if chat.summary:
                _print_part("summary of it", chat.summary)
        _print_message(message, with_stats=with_stats)


def print_hits(hits: Sequence[SearchHit]) -> None:
    """Print each hit: its chat, who said it and when, and the words in their context."""
    for hit in hits:
        where = f"{hit.chat_id}  {one_line(hit.title)}"
        said = ["title"] if hit.role is None else [SPEAKERS[hit.role], time_text(hit.created_at)]
        if not hit.is_on_shown_path:
            said.append("other branch")
        if hit.is_archived:
            said.append("archived")
        say((where, "bold"), "  ", (", ".join(said), "dim"))
        if hit.role is not None:
            say("    ", *_marked(hit))


def time_text(seconds: float) -> str:
    """A time of the epoch as local date and time."""
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _print_message(message: StoredMessage, *, with_stats: bool) -> None:
    speaker = SPEAKERS[message.role]
    if message.role == "assistant" and message.model_name:
        speaker = one_line(message.model_name)
    is_cut = message.role == "assistant" and message.finish_reason is None
    _print_part(
        speaker, message.content, time_text(message.created_at) + (", cut" if is_cut else "")
    )
    stats = reply_stats_text(message) if with_stats else None
    if stats is not None:
        say((stats, "dim"))


def _print_part(name: str, text: str, told: str = "") -> None:
    say("\n", (name, "bold"), *(("  ", (told, "dim")) if told else ()))
    say(text)


def _marked(hit: SearchHit) -> list[Part]:
    """The snippet with what was found in bold."""
    text = hit.snippet
    parts: list[Part] = []
    end = 0
    for start, stop in hit.marked:
        parts += [text[end:start], (text[start:stop], "bold yellow")]
        end = stop
    return [*parts, text[end:]]
