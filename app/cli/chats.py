"""`kvchat chats`: the chats of this user, without the screen."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from io import BufferedReader
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO, cast

import click

from app import format as fmt
from app import paths
from app.cache import forget_on_disk, owner_of
from app.chat_files import (
    MAX_CHAT_FILE_BYTES,
    ChatFileFormat,
    format_of,
    imported,
    read_chats,
    text_of,
    write_chats,
)
from app.chat_files.jsonl import ChatFileError
from app.chat_files.markdown import n_left_out
from app.cli.options import Count, json_option
from app.console import Part, Progress, confirm, log_line, print_json, print_line, print_text
from app.render.reply_stats import reply_stats_text
from app.sanitize import one_line
from app.store.chats import ChatStore
from app.store.records import Chat, ChatSize, ChatTree, StoredMessage
from app.store.search import SearchHit
from app.tables import console, plain_table
from engine.errors import CacheStoreError, EngineError
from engine.files import expanded, open_file, reason_of
from engine.memory.units import MIB
from engine.model.ollama import model_title
from engine.validation import nearest

MAX_SHOWN = 10_000
STANDARD = "-"
ALL = 1_000_000
N_NAMED = 8
"""Chats that a message names at most."""
NO_CHATS = "There are no chats yet."
SPEAKERS = {"system": "system", "user": "you", "assistant": "assistant"}


class NoSuchChatError(EngineError):
    """No chat, or more than one, is meant by what was typed."""

    title = "Unknown chat"


@click.group(name="chats", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List, search, show, fork, rename, archive, delete, export and import chats.

    CHAT is a number from `kvchat chats list`, a title, or a unique part of a title.

    \b
    kvchat chats search prefix cache       messages with both words
    kvchat chats search '"prefix cache"'   messages with the phrase
    kvchat chats export 12 -o chat.md      as Markdown; .jsonl has every branch
    kvchat chats export --all -o all.jsonl all chats, for import
    """  # noqa: D301  click wants the backspace character itself
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@command.command(name="list")
@click.option("--archived", is_flag=True, help="List archived chats.")
@json_option
def list_(*, archived: bool = False, as_json: bool = False) -> None:
    """List chats, most recently used first."""
    with _store() as store:
        chats, sizes = store.list_chats(ALL, archived=archived), store.sizes()
    if as_json:
        print_json([asdict(c) | sizes.get(c.id, ChatSize())._asdict() for c in chats])
    elif chats:
        _print_chats(chats, sizes)
    else:
        log_line("The archive is empty." if archived else NO_CHATS)


@command.command(name="show")
@click.argument("chat", metavar="CHAT")
@click.option("--stats", is_flag=True, help="Also print the statistics of each reply.")
def show(chat: str, *, stats: bool) -> None:
    """Print the current branch of CHAT, a number or a part of a title."""
    with _store() as store:
        found = find_chat(store, chat)
        path = [] if found.head_id is None else store.path_to(found.head_id)
        size = store.sizes().get(found.id, ChatSize())
    _print_chat(found, path, size, with_stats=stats)


@command.command(name="search")
@click.argument("words", nargs=-1, required=True)
@click.option("-n", "--limit", default=20, show_default=True, type=Count(1, MAX_SHOWN))
@json_option
def search(words: tuple[str, ...], *, limit: int, as_json: bool) -> None:
    """Find messages and titles that contain all WORDS; quote a phrase."""
    if not "".join(words).strip(' "'):
        raise click.UsageError("specify a word to search for")
    with _store() as store:
        hits = store.search(" ".join(words), limit)
    if as_json:
        print_json(hits)
    elif hits:
        for hit in hits:
            _print_hit(hit)
        if len(hits) == limit:
            more = "" if limit >= MAX_SHOWN else f": -n {min(2 * limit, MAX_SHOWN)} shows more"
            log_line(f"the first {limit:,} matches{more}")
    else:
        log_line("No message contains these words.")


@command.command(name="fork")
@click.argument("chat", metavar="CHAT")
@click.option("--at", "place", type=Count(1), help="Number of the last message to copy.")
def fork(chat: str, *, place: int | None) -> None:
    """Copy the current branch of CHAT, a number or a part of a title, into a new chat."""
    with _store() as store:
        found = find_chat(store, chat)
        path = [] if found.head_id is None else store.path_to(found.head_id)
        if not path or (place or 1) > len(path):
            raise click.UsageError(
                f"--at is out of range: the current branch has {_counted(len(path))}, numbered "
                "from 1"
            )
        copied = store.fork_chat(path[(place or len(path)) - 1].id)
    log_line(f"{_called(copied)} is a copy of {_called(found)}")


@command.command(name="rename")
@click.argument("chat", metavar="CHAT")
@click.argument("title", metavar="TITLE")
def rename(chat: str, title: str) -> None:
    """Change the title of CHAT, a number or a part of a title."""
    if not title.strip():
        raise click.UsageError("the title is empty: write a title")
    with _store() as store:
        found = find_chat(store, chat)
        renamed = store.update_chat(found.id, title=title.strip(), title_locked=True)
    log_line(f"{_called(found)} is now {one_line(renamed.title)}")


@command.command(name="archive")
@click.argument("chats", metavar="CHAT...", nargs=-1, required=True)
def archive(chats: tuple[str, ...]) -> None:
    """Archive chats, by number or title: hide them from the list; search still finds them."""
    _set_archived(chats, archived=True)


@command.command(name="unarchive")
@click.argument("chats", metavar="CHAT...", nargs=-1, required=True)
def unarchive(chats: tuple[str, ...]) -> None:
    """Move archived chats, by number or title, back to the list."""
    _set_archived(chats, archived=False)


@command.command(name="delete")
@click.argument("chats", metavar="CHAT...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(chats: tuple[str, ...], *, yes: bool) -> None:
    """Delete chats, by number or title, and their saved states.

    A chat that is being answered is not deleted.
    """
    with _store() as store:
        found = _find_all(store, chats)
        sizes = store.sizes()
        for chat in found:
            log_line(f"{_called(chat)}: {_counted(sizes.get(chat.id, ChatSize()).n_messages)}")
        confirm("Delete permanently?", "--yes deletes them", is_sure=yes)
        for chat in found:
            _delete(store, chat)


@command.command(name="export")
@click.argument("chats", metavar="[CHAT...]", nargs=-1)
@click.option("--all", "all_chats", is_flag=True, help="Export every chat, archived ones included.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["md", "jsonl"]),
    help="Markdown, or JSON lines with every branch. [from the file name]",
)
@click.option("--branches", is_flag=True, help="Include all branches in Markdown.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Output file. [standard output]"
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def export(
    chats: tuple[str, ...],
    *,
    all_chats: bool,
    form: ChatFileFormat | None,
    branches: bool,
    output: Path | None,
    force: bool,
) -> None:
    """Write chats, by number or title, as Markdown or JSON lines."""
    if bool(chats) == all_chats:
        raise click.UsageError("specify the chats to export, or use --all")
    is_screen = output is None or str(output) == STANDARD
    chosen: ChatFileFormat = form or ("md" if output is None else format_of(output))
    with _store() as store:
        found = _find_all(store, chats)
        if all_chats:
            found = sorted(store.list_chats(ALL, archived=None), key=lambda chat: chat.id)
        if not found:
            log_line(NO_CHATS)
        n_omitted = 0

        def trees() -> Iterator[ChatTree]:
            nonlocal n_omitted
            for chat in found:
                tree = store.tree(chat.id)
                n_omitted += 0 if branches or chosen == "jsonl" else n_left_out([tree])
                yield tree

        pieces = text_of(trees(), chosen, all_branches=branches)
        if output is None or is_screen:
            print_text(pieces, nl=False)
        else:
            write_chats(expanded(output), pieces, replace=force)
            log_line(f"{fmt.counted(len(found), 'chat')} in {output}")
    if n_omitted:
        omitted = _counted(n_omitted)
        log_line(f"not exported: {omitted} on other branches (add --branches to export them)")


@command.command(name="import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def import_(files: tuple[str, ...]) -> None:
    """Import chats from exported files; `-` is standard input. Existing chats are never replaced.

    Files are JSON lines from `kvchat chats export`. If one file has an error, nothing is imported.
    """
    with Progress() as progress, ExitStack() as opened:
        sources = [(name, opened.enter_context(_opened(name, progress))) for name in files]
        imported = _Imported(sources, progress)
        with _store() as store:
            try:
                added = store.add_trees(imported)
            except KeyboardInterrupt:
                imported.is_stopped = True
                raise
    for chat, n_of_chat in zip(added, imported.n_messages, strict=True):
        log_line(f"{_called(chat)}: {_counted(n_of_chat)}")
    n_messages = _counted(sum(imported.n_messages))
    log_line(f"imported {fmt.counted(len(added), 'chat')} with {n_messages}")


def _print_chats(chats: Sequence[Chat], sizes: Mapping[int, ChatSize]) -> None:
    in_folders = any(chat.folder for chat in chats)
    titles = ("id", "last used", "messages", "tokens", "model", *(["folder"] * in_folders), "title")
    rows = [_cells(chat, sizes.get(chat.id, ChatSize()), in_folders=in_folders) for chat in chats]
    console().print(plain_table(titles, rows, numbers=("id", "messages", "tokens"), folds=False))


def _cells(chat: Chat, size: ChatSize, *, in_folders: bool) -> tuple[str, ...]:
    return (
        str(chat.id),
        fmt.local_time(chat.updated_at),
        fmt.count(size.n_messages),
        fmt.count(size.n_tokens) if size.n_tokens or not size.n_messages else "-",
        "-" if chat.model_path is None else model_title(chat.model_path),
        *([chat.folder or "-"] * in_folders),
        chat.title,
    )


def _print_chat(
    chat: Chat, path: Sequence[StoredMessage], size: ChatSize, *, with_stats: bool
) -> None:
    print_line((one_line(chat.title), "bold"))
    facts = [f"chat {chat.id}", f"started {fmt.local_time(chat.created_at)}"]
    if chat.model_path is not None:
        facts.append(one_line(model_title(chat.model_path)))
    facts.append(
        f"{fmt.count(len(path))} of {fmt.counted(size.n_messages, 'message')} on this branch"
    )
    if chat.archived_at is not None:
        facts.append(f"archived {fmt.local_time(chat.archived_at)}")
    print_line((" · ".join(facts), "dim"))
    if chat.system_prompt:
        _print_part("system prompt", chat.system_prompt)
    for message in path:
        if message.id == chat.context_start:
            print_line(("\n── the model no longer sees the messages above ──", "dim"))
            if chat.summary:
                _print_part("summary of the messages above", chat.summary)
        _print_message(message, with_stats=with_stats)


def _print_hit(hit: SearchHit) -> None:
    """Print the chat, who wrote the message and when, and the words in their context."""
    facts = ["title"] if hit.role is None else [SPEAKERS[hit.role], fmt.local_time(hit.created_at)]
    facts += ["other branch"] * (not hit.is_on_shown_path) + ["archived"] * hit.is_archived
    where = f"{hit.chat_id}  {one_line(hit.title)}"
    print_line((where, "bold"), "  ", (", ".join(facts), "dim"))
    if hit.role is not None:
        print_line("    ", *_marked(hit))


def _print_message(message: StoredMessage, *, with_stats: bool) -> None:
    speaker = SPEAKERS[message.role]
    if message.role == "assistant" and message.model_name:
        speaker = one_line(message.model_name)
    is_cut = message.role == "assistant" and message.finish_reason is None
    _print_part(
        speaker, message.content, fmt.local_time(message.created_at) + (", cut" if is_cut else "")
    )
    stats = reply_stats_text(message) if with_stats else None
    if stats is not None:
        print_line((stats, "dim"))


def _print_part(name: str, text: str, facts: str = "") -> None:
    print_line("\n", (name, "bold"), *(("  ", (facts, "dim")) if facts else ()))
    print_line(text)


def _marked(hit: SearchHit) -> list[Part]:
    """The snippet with what was found in bold."""
    text = hit.snippet
    parts: list[Part] = []
    end = 0
    for start, stop in hit.marked:
        parts += [text[end:start], (text[start:stop], "bold yellow")]
        end = stop
    return [*parts, text[end:]]


def find_chat(store: ChatStore, text: str) -> Chat:
    """The chat with this id, this title or, when there is only one, this part of a title.

    Archived chats are found too; where a title occurs several times, all of them are named.

    Raises:
        NoSuchChatError: If none matches, or more than one.
    """
    chats = store.list_chats(ALL, archived=None)
    wanted = text.strip().casefold()
    if by_id := [chat for chat in chats if str(chat.id) == wanted]:
        return by_id[0]
    titled = [chat for chat in chats if chat.title.strip().casefold() == wanted]
    found = titled or [chat for chat in chats if wanted and wanted in chat.title.casefold()]
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchChatError(
            f"{text!r} matches {len(found)} titles; use one of these numbers:\n{_named(found)}"
        )
    raise NoSuchChatError(
        f"there is no chat with the number or title {text!r}{_near(wanted, chats)}"
    )


def _delete(store: ChatStore, chat: Chat) -> None:
    store.delete_chat(chat.id)
    log_line(f"{_called(chat)} is deleted")
    try:
        states = forget_on_disk(owner_of(chat.id))
    except CacheStoreError as error:
        log_line(
            f"the saved states of the chat could not be deleted: {error}. `kvchat cache clear` "
            "deletes all states"
        )
        return
    if states:
        size = fmt.nbytes(sum(state.nbytes for state in states))
        log_line(f"also deleted: {fmt.counted(len(states), 'saved state')}, {size}")


@contextmanager
def _store() -> Iterator[ChatStore]:
    with ChatStore(paths.database_path()) as store:
        for notice in store.notices:
            log_line(notice)
        yield store


def _named(chats: Sequence[Chat]) -> str:
    lines = [f"{chat.id:>6}  {one_line(chat.title)}" for chat in chats[:N_NAMED]]
    if len(chats) > N_NAMED:
        lines.append(f"        and {len(chats) - N_NAMED} more")
    return "\n".join(lines)


def _near(wanted: str, chats: Sequence[Chat]) -> str:
    by_title = {chat.title.casefold(): chat for chat in reversed(chats)}
    near = nearest(wanted, by_title, n=N_NAMED, cutoff=0.5)
    if not near:
        return ": `kvchat chats list` shows the chats; add --archived for archived chats"
    return f"; similar:\n{_named([by_title[title] for title in near])}"


def _find_all(store: ChatStore, texts: Iterable[str]) -> list[Chat]:
    """The chats that were named, each once."""
    return list({chat.id: chat for chat in (find_chat(store, text) for text in texts)}.values())


def _set_archived(texts: Iterable[str], *, archived: bool) -> None:
    with _store() as store:
        for chat in _find_all(store, texts):
            if archived != (chat.archived_at is not None):
                store.update_chat(chat.id, archived_at=time.time() if archived else None)
            log_line(f"{_called(chat)} is {'archived' if archived else 'back in the list'}")


class _Imported:
    """The chats of opened files, read one by one; each iteration reads them from the beginning."""

    def __init__(self, files: Sequence[tuple[str, BinaryIO]], progress: Progress) -> None:
        self.n_messages: list[int] = []
        """Number of messages of each chat that was read."""
        self.is_stopped = False
        """Whether the thread that reads has to end, and so adds nothing."""
        self._files = files
        self._progress = progress

    def __iter__(self) -> Iterator[ChatTree]:
        self.n_messages.clear()
        for name, file in self._files:
            with _named_faults(name):
                file.seek(0)
                for tree in read_chats(file, on_progress=self._show):
                    self.n_messages.append(len(tree.messages))
                    yield imported(tree)

    def _show(self, n_bytes: int) -> None:
        if self.is_stopped:
            raise InterruptedError("stopped")
        self._progress.show(f"reading the chats: {fmt.nbytes(n_bytes)}")


def _opened(name: str, progress: Progress) -> BinaryIO:
    """A file, or a copy of standard input, so that no chat is locked while input is awaited."""
    with _named_faults(name):
        if name != STANDARD:
            return BufferedReader(open_file(expanded(name)))
        copy = cast(BinaryIO, TemporaryFile())  # noqa: SIM115  the caller closes it
        while copy.tell() <= MAX_CHAT_FILE_BYTES and (block := sys.stdin.buffer.read(MIB)):
            copy.write(block)
            progress.show(f"reading the chats: {fmt.nbytes(copy.tell())}")
        return copy


@contextmanager
def _named_faults(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ChatFileError(f"{name} cannot be read: {reason_of(error)}") from error
    except ChatFileError as error:
        raise ChatFileError(f"{one_line(name)}, {one_line(str(error))}") from error


def _called(chat: Chat) -> str:
    return f"chat {chat.id}, {one_line(chat.title)}"


def _counted(n_messages: int) -> str:
    return fmt.counted(n_messages, "message")
