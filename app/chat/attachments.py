"""Attachments of a message: long pastes, and files named as `@path`.

An unsent text holds each long paste between two control characters, which no keyboard types and no
paste contains; the composer shows one line for it. Files are read when the message is sent: a text
then follows the message, an image replaces its name.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from app import format as fmt
from app.matching import is_meant
from app.paths import typed_path
from app.sanitize import visible
from engine.errors import EngineError
from engine.files import read_bytes, reason_of
from engine.images import SUFFIXES, Image, ImageError, images_in, parts_of, read_image

PASTE_BEGINS, PASTE_ENDS = "\x02", "\x03"
LONG_TEXT = 2000
"""Characters from which a paste is shown as one line."""
LONG_LINES = 8
"""Lines from which a paste is shown as one line."""
MAX_FILE_BYTES = 1 << 20
"""A larger file fits into no context of a local model."""
MAX_NAMES = 4000
"""Names of files that completion looks at: a folder of a project, not a disk."""
IGNORED = ("node_modules", "__pycache__", "venv", "target", "build", "dist")
"""Folders that completion skips, with those whose name begins with a dot."""

_PASTE = re.compile(f"{PASTE_BEGINS}(.*?){PASTE_ENDS}", re.DOTALL)
_NAME = re.compile(r"(?<![\w@/.])@(?:\"([^\"\n]+)\"|([^\s\"@,;:!?()\[\]{}<>]+))")
_FILE = "\n\nFile "
SHORTEST_FENCE = 3


class AttachmentError(EngineError):
    """A file cannot be attached to a message."""

    title = "The file cannot be attached"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A text that is attached to a message."""

    name: str
    """The path of a file as it was written, or the number of a paste."""
    text: str
    image: Image | None = None
    """The image; its reference in a message is then the text."""


# --- pastes ---


def is_long(text: str) -> bool:
    """Whether a paste is shown as one line."""
    return len(text) >= LONG_TEXT or text.count("\n") + 1 >= LONG_LINES


def folded(text: str) -> str:
    """A paste as an unsent text holds it."""
    return f"{PASTE_BEGINS}{without_marks(text)}{PASTE_ENDS}"


def without_marks(text: str) -> str:
    """A text without the two characters that mark a paste."""
    return text.replace(PASTE_BEGINS, "").replace(PASTE_ENDS, "")


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of an unsent text, and whether each is a paste."""
    for index, part in enumerate(_PASTE.split(text)):
        if part:
            yield part, bool(index % 2)


def in_short(text: str) -> str:
    """An unsent text with a label for each paste, for a line of a list."""
    return _PASTE.sub(lambda match: f"[{paste_size(match[1])}]", text)


def paste_size(text: str) -> str:
    """The label of a paste: `214 lines pasted`."""
    return f"{fmt.counted(line_count(text), 'line')} pasted"


def line_count(text: str) -> int:
    """Lines of a text; a newline at its end begins none."""
    return text.count("\n") + (not text.endswith("\n"))


def with_newlines(text: str) -> str:
    r"""A text whose lines end with `\n`."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


# --- files ---


def names_in(text: str) -> list[str]:
    """The paths that a written text names as `@path` or `@"a path"`, each once; not in pastes."""
    own = "".join(part if not is_paste else " " for part, is_paste in pieces(text))
    found = (match[1] or match[2].rstrip(".'") for match in _NAME.finditer(own))
    return list(dict.fromkeys(filter(None, found)))


def read_files(text: str, folder: Path) -> list[Attachment]:
    """The files that a text names; a name of no file is a word of the text."""
    return [read_file(name, folder) for name in names_in(text) if is_file(name, folder)]


def is_file(name: str, folder: Path) -> bool:
    """Whether a name is that of a file or of a broken link."""
    path = typed_path(str(folder / name))
    try:
        path.lstat()
        return not path.is_dir()
    except (OSError, ValueError):
        return False


def read_file(name: str, folder: Path) -> Attachment:
    """One text file, or an image.

    Raises:
        AttachmentError: If it is binary, too large, cannot be read or is not in `folder`.
    """
    shown = visible(name)
    path = typed_path(str(folder / name))
    try:
        inside = path.resolve(strict=True).is_relative_to(folder.resolve())
        if not inside:
            how = "points" if path.is_symlink() else "is"
            raise AttachmentError(
                f"@{shown} {how} outside the folder {visible(str(folder.resolve()))}: copy the "
                "file there, or start kvchat in the file's folder"
            )
        if path.suffix.lower() in SUFFIXES:
            state = path.stat()
            image = _image(path, f"@{shown}", (state.st_ino, state.st_size, state.st_mtime_ns))
            return Attachment(name, replace(image, name=name).reference, image=image)
        data = read_bytes(path, limit=MAX_FILE_BYTES)
    except ImageError as error:
        raise AttachmentError(str(error)) from error
    except (OSError, RuntimeError) as error:
        raise AttachmentError(f"@{shown} cannot be read: {reason_of(error)}") from error
    if b"\0" in data:
        raise AttachmentError(f"@{shown} is a binary file: attach text or images")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttachmentError(
            f"@{shown} is not UTF-8 text (byte {error.start:,}): convert the file, or paste "
            "the text"
        ) from error
    return Attachment(name, without_marks(with_newlines(text)))


@lru_cache(maxsize=32)
def _image(path: Path, name: str, _stamp: tuple[int, int, int]) -> Image:
    """An image, read again only if its file changes."""
    return read_image(path, name)


def message_with(text: str, files: Sequence[Attachment]) -> str:
    """The message that the model gets: pastes and images in their places, then text files.

    An image reference in a paste or a text file stays text.
    """
    images = {file.name: file.text for file in files if file.image is not None}

    def placed(match: re.Match[str]) -> str:
        written = match[1] or match[2]
        name = written if match[1] else written.rstrip(".'")
        return images.pop(name, match[0].removesuffix(written[len(name) :])) + written[len(name) :]

    parts = (
        without_references(part) if is_paste else _NAME.sub(placed, part) if images else part
        for part, is_paste in pieces(text)
    )
    blocks = (_block(file) for file in files if file.image is None)
    return without_marks("".join(parts)) + "".join(blocks)


def written_message(text: str, folder: Path, blindness: str = "") -> str:
    """The message that the model gets, with the files below `folder` that an unsent text names.

    `blindness` is why no image can go with a message; empty if one can. `AttachmentError` is raised
    if a file cannot go with it.
    """
    files = read_files(text, folder)
    image = next((file for file in files if file.image is not None), None)
    if image is not None and blindness:
        raise AttachmentError(f"@{visible(image.name)} is an image, but {blindness}")
    return message_with(text, files)


def as_written(message: str, folder: Path) -> str:
    """A message as unsent text: the files that it names are read again when it is sent.

    The content of a file that is no longer in `folder` returns as a paste. So does a long message
    without files, since it was hardly typed.
    """
    text, files = _without_files(message)
    text = "".join(
        part if isinstance(part, str) else mention(part.name) if _is_there(part) else part.reference
        for part in parts_of(text)
    )
    text = folded(text) if is_long(text) and not names_in(text) else text
    gone = (folded(_block(file)) for file in files if not is_file(file.name, folder))
    return text + "".join(gone)


def _is_there(image: Image) -> bool:
    try:
        return typed_path(image.name).resolve() == image.path and image.path.is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def attached_to(message: str) -> tuple[str, list[Attachment]]:
    """The text of a sent message, with the names of its images, and its files."""
    message, files = _without_files(message)
    images = [Attachment(image.name, image.reference, image=image) for image in images_in(message)]
    return without_references(message), [*images, *files]


def without_references(text: str) -> str:
    """A text with the names of its images instead of their references."""
    if not images_in(text):
        return text
    return "".join(part if isinstance(part, str) else mention(part.name) for part in parts_of(text))


def _without_files(message: str) -> tuple[str, list[Attachment]]:
    files: list[Attachment] = []
    named = set(names_in(message))
    end = len(message)
    while (found := _last_file(message, end)) is not None and found[1].name in named:
        end, file = found
        files.append(file)
    return message[:end], files[::-1]


def _last_file(message: str, end: int) -> tuple[int, Attachment] | None:
    """The file that ends `message[:end]`, and its start.

    It is found from its last fence backwards, which no line of the file can equal: hostile text
    costs one look at each character.
    """
    closing = end
    while closing > 0 and message[closing - 1] == "`":
        closing -= 1
    fence = message[closing:end]
    opening = message.rfind(f":\n{fence}\n", 0, closing) if len(fence) >= SHORTEST_FENCE else -1
    start = message.rfind(_FILE, 0, opening) if opening >= 0 else -1
    name = message[start + len(_FILE) : opening]
    if start < 0 or not name or "\n" in name or message[closing - 1] != "\n":
        return None
    text = message[opening + len(f":\n{fence}\n") : closing]
    return start, Attachment(name, text.removesuffix("\n"))


def _block(file: Attachment) -> str:
    return f"{_FILE}{file.name}:\n{_fenced(without_references(file.text))}"


def _fenced(text: str) -> str:
    """A text between fences that are longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


# --- completion ---


def file_names(folder: Path, limit: int = MAX_NAMES) -> list[str]:
    """Paths of the files below a folder, shallow ones first; unreadable folders are skipped.

    Links are left out, as they may lead anywhere, and so are names that are no text.
    """
    found: list[Path] = []
    waiting = [folder]
    while waiting and len(found) < limit:
        here = waiting.pop(0)
        with suppress(OSError), os.scandir(here) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if _is_offered(entry):
                    path = here / entry.name
                    (waiting if entry.is_dir() else found).append(path)
    return [str(path.relative_to(folder)) for path in found[:limit]]


def _is_offered(entry: os.DirEntry[str]) -> bool:
    is_plain = entry.name.isprintable() and not entry.name.startswith(".")
    return is_plain and entry.name not in IGNORED and not entry.is_symlink()


def matching(names: Sequence[str], typed: str) -> list[str]:
    """The names that contain what was typed, or its letters in order; the nearest first."""
    wanted = typed.casefold()

    def fits(name: str) -> tuple[bool, ...]:
        path = name.casefold()
        last = path.rsplit("/", 1)[-1]
        starts = last.startswith(wanted), path.startswith(wanted)
        return (*starts, wanted in path, is_meant(last, wanted))

    ranks = {name: found.index(True) for name in names if any(found := fits(name))}
    return sorted(ranks, key=ranks.__getitem__)


def mention(name: str) -> str:
    """The text with which a message refers to a file, such as `@notes.txt`."""
    return f'@"{name}"' if _NAME.fullmatch(f"@{name}") is None else f"@{name}"
