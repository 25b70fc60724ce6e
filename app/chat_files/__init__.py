"""Chats as files: Markdown to read, JSON lines that lose nothing, and both read back."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from app.chat_files.jsonl import ChatFileError, jsonl_of, read_jsonl, wrong_line
from app.chat_files.markdown import markdown_of, read_markdown
from app.store.records import ChatTree
from engine.files import replace_file

ChatFileFormat = Literal["md", "jsonl"]
MAX_CHAT_FILE_BYTES = 1 << 30
"""Most bytes of a file of chats; reading one takes several times as much memory."""


def format_of(path: Path) -> ChatFileFormat:
    """The format that the end of a file's name asks for; Markdown where it says nothing."""
    return "jsonl" if path.suffix.lower() in (".jsonl", ".json", ".ndjson") else "md"


def text_of(
    trees: Iterable[ChatTree], form: ChatFileFormat, *, all_branches: bool
) -> Iterable[str]:
    """Chats in a format, piece by piece; JSON lines always hold all branches."""
    if form == "jsonl":
        return jsonl_of(trees)
    return markdown_of(trees, all_branches=all_branches)


def write_chats(path: Path, pieces: Iterable[str], *, replace: bool) -> None:
    """Write a file of chats, whole or not at all, for its owner only.

    Raises:
        ChatFileError: If the file exists and is not to be replaced, its folder does not, or it
            cannot be written.
    """
    try:
        if not path.parent.exists():
            raise ChatFileError(f"there is no folder {path.parent}: make it, or name another file")
        if path.exists() and not replace:
            raise ChatFileError(f"{path} exists: choose another name, or replace it with --force")
        replace_file(path, (piece.encode() for piece in pieces), is_durable=False)
    except OSError as error:
        raise ChatFileError(f"{path} cannot be written: {error.strerror or error}") from error


def read_chats(data: bytes) -> list[ChatTree]:
    """Read the chats of a file, JSON lines or Markdown; each tree's ids are those of the file.

    Raises:
        ChatFileError: If it is neither; the line is named.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise wrong_line(line, "this is no text in UTF-8") from error
    return read_jsonl(text) if text.lstrip().startswith("{") else read_markdown(text)
