"""Chats as files: Markdown to read, and lossless JSON lines to read back."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import BinaryIO, Literal

from app import format as fmt
from app.chat_files.jsonl import ChatFileError, jsonl_of, read_jsonl, wrong_line
from app.chat_files.markdown import markdown_of
from app.store.records import ChatTree
from engine.files import reason_of, replace_file
from engine.servers import saved_server

ChatFileFormat = Literal["md", "jsonl"]
MAX_CHAT_FILE_BYTES = 1 << 30


def format_of(path: Path) -> ChatFileFormat:
    """The format of a file by its suffix; Markdown by default."""
    return "jsonl" if path.suffix.lower() in (".jsonl", ".json", ".ndjson") else "md"


def text_of(
    trees: Iterable[ChatTree], form: ChatFileFormat, *, all_branches: bool
) -> Iterable[str]:
    """Chats in a format, in parts; JSON lines always have all branches."""
    if form == "jsonl":
        return jsonl_of(trees)
    return markdown_of(trees, all_branches=all_branches)


def write_chats(path: Path, pieces: Iterable[str], *, replace: bool) -> None:
    """Write a file of chats atomically, for its owner only.

    Raises:
        ChatFileError: If the file exists and is not to be replaced, its folder does not, or it
            cannot be written.
    """
    try:
        if not path.parent.exists():
            raise ChatFileError(
                f"the folder {path.parent} does not exist: create it, or choose another file"
            )
        if path.exists() and not replace:
            raise ChatFileError(
                f"{path} already exists: choose another file, or pass --force to replace it"
            )
        replace_file(path, (piece.encode() for piece in pieces), is_durable=False)
    except OSError as error:
        raise ChatFileError(f"{path} cannot be written: {reason_of(error)}") from error


def read_chats(
    file: BinaryIO, *, on_progress: Callable[[int], object] | None = None
) -> Iterator[ChatTree]:
    """The chats of a file of JSON lines, one at a time; ids are those of the file.

    Args:
        file: The file at its start.
        on_progress: Called with the bytes read so far, line by line.

    Raises:
        ChatFileError: If a line is not what an export writes; the message names it.
    """
    n_chats = 0
    for tree in read_jsonl(_lines(file, on_progress or bool)):
        n_chats += 1
        yield tree
    if not n_chats:
        raise ChatFileError(
            "the file contains no chat: write a chat file with `kvchat chats export -o FILE.jsonl`"
        )


def imported(tree: ChatTree) -> ChatTree:
    """A chat of a file to add here: without a server, and used no later than now.

    A file must neither connect to another machine nor decide which chat was used last.
    """
    now = time.time()
    chat = tree.chat
    is_server = chat.model_path is not None and saved_server(chat.model_path) is not None
    adopted = replace(
        chat,
        model_path=None if is_server else chat.model_path,
        created_at=min(chat.created_at, now),
        updated_at=min(chat.updated_at, now),
    )
    return replace(tree, chat=adopted)


def _lines(file: BinaryIO, on_progress: Callable[[int], object]) -> Iterator[str]:
    n_read = 0
    for number in count(1):
        line = file.readline(MAX_CHAT_FILE_BYTES - n_read + 1)
        n_read += len(line)
        if n_read > MAX_CHAT_FILE_BYTES:
            most = fmt.short_nbytes(MAX_CHAT_FILE_BYTES)
            raise ChatFileError(f"the file is larger than {most}: split the file")
        on_progress(n_read)
        if not line:
            return
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise wrong_line(number, "the file is not UTF-8 text") from error
