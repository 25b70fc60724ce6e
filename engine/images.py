"""Images in messages: how a text names one, what may be read, and the tokens that stand for one.

A message names an image as Markdown does, with what the file was when it was attached:
`![name](file:///folder/picture.png#sha256=...&size=640x480)`. A prompt has tokens of its own in
that place, which follow from the image and the projector alone: negative numbers, none of the
vocabulary's. What is kept of a line is found again by them, also where the file is gone.
"""

import base64
import hashlib
import re
import struct
from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from engine.errors import EngineError
from engine.files import read_bytes

MAX_IMAGE_BYTES = 64 << 20
MAX_PIXELS = 1 << 26
"""Four bytes and more are taken for each while an image is read: 67 million are 200 MB."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
"""Names of images; WebP among them, to say that it cannot be read."""
FORMATS = "PNG, JPEG, BMP and GIF are read"
JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the JPEG segments that tell the size."""

_REFERENCE = re.compile(
    r"!\[(?P<name>[^\]\n]*)\]\(file://(?P<path>/[^\s()#]*)"
    r"#sha256=(?P<sha256>[0-9a-f]{64})&size=(?P<width>[1-9]\d{0,5})x(?P<height>[1-9]\d{0,5})\)"
)
_UNWRITABLE = re.compile(r"[\[\]\x00-\x1f\x7f-\x9f]")


class ImageError(EngineError):
    """An image that cannot be read, or that nobody here can look at."""

    title = "The image cannot be used"


@dataclass(frozen=True, slots=True)
class Image:
    """An image as it was attached."""

    name: str
    """As its message called it."""
    path: Path
    sha256: str
    """Digest of the file: 64 hexadecimal digits."""
    width: int
    height: int

    @property
    def reference(self) -> str:
        """How a message names it."""
        name = _UNWRITABLE.sub("_", self.name)
        address = f"file://{quote(str(self.path), safe='/')}"
        return f"![{name}]({address}#sha256={self.sha256}&size={self.width}x{self.height})"

    def check_size(self) -> None:
        """Refuse a size that nobody reads.

        Raises:
            ImageError: it has none, or more than `MAX_PIXELS`.
        """
        if not 0 < self.width * self.height <= MAX_PIXELS:
            raise ImageError(
                f"{self.name} has {self.width:,} x {self.height:,} pixels, and at most "
                f"{MAX_PIXELS:,} are read: make a smaller copy"
            )

    def read(self) -> bytes:
        """The file, where it is still the one that was attached.

        Raises:
            ImageError: it is gone, cannot be read, or is another one now.
        """
        data = _bytes_of(
            self.path, self.name, f"{self.path} is gone; put it back, or edit the message"
        )
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ImageError(
                f"{self.path} is another file than the one that the chat has as {self.name}: put "
                "that one back, or edit the message and attach this one"
            )
        return data


def data_url(data: bytes) -> str:
    """An image as servers take it that speak as OpenAI's do."""
    kind = {b"\xff\xd8": "jpeg", b"GI": "gif", b"BM": "bmp"}.get(data[:2], "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def parts_of(text: str) -> Iterator[str | Image]:
    """A text cut at the images that it names."""
    at = 0
    for match in _REFERENCE.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        path = Path(unquote(match["path"]))
        size = int(match["width"]), int(match["height"])
        yield Image(match["name"], path, match["sha256"], *size)
        at = match.end()
    if at < len(text):
        yield text[at:]


def images_in(text: str) -> list[Image]:
    """The images that a text names, in its order."""
    if "#sha256=" not in text:
        return []
    return [part for part in parts_of(text) if isinstance(part, Image)]


def read_image(path: Path, name: str) -> Image:
    """An image of a file, of which nothing is decoded yet.

    Args:
        path: The file.
        name: What it is called in the message and in errors.

    Raises:
        ImageError: it cannot be read, is too large, cut off, or none of the formats.
    """
    data = _bytes_of(path, name, "check the path")
    width, height = _size(data, name)
    image = Image(name, path.resolve(), hashlib.sha256(data).hexdigest(), width, height)
    image.check_size()
    return image


def _bytes_of(path: Path, name: str, if_missing: str) -> bytes:
    try:
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise ImageError(
                f"{name} has {path.stat().st_size / (1 << 20):,.0f} MiB, and images have at most "
                f"{MAX_IMAGE_BYTES >> 20}: make a smaller copy"
            )
        return read_bytes(path, limit=MAX_IMAGE_BYTES)
    except FileNotFoundError as error:
        raise ImageError(f"{name} is not there: {if_missing}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{name} cannot be read: {reason}") from error


def _size(data: bytes, name: str) -> tuple[int, int]:
    """Width and height as the header says."""
    try:
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            found, is_whole = struct.unpack_from(">II", data, 16), b"IEND" in data[-1024:]
        elif data.startswith(b"\xff\xd8\xff"):
            found, is_whole = _jpeg_size(data), b"\xff\xd9" in data[-65536:]
        elif data.startswith((b"GIF87a", b"GIF89a")):
            found, is_whole = struct.unpack_from("<HH", data, 6), data.rstrip(b"\0").endswith(b";")
        elif data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
            (n_bytes,) = struct.unpack_from("<I", data, 2)
            found, is_whole = (width, abs(height)), len(data) >= n_bytes
        elif data[:4] == b"RIFF" and data[8:12] == b"WEBP":
            raise ImageError(f"{name} is a WebP: {FORMATS}; save a copy as PNG")
        else:
            raise ImageError(f"{name} is none of the images that can be read: {FORMATS}")
    except (struct.error, IndexError) as error:
        raise ImageError(f"{name} is cut off: its header is not whole") from error
    if not is_whole:
        raise ImageError(f"{name} is cut off: its end is missing; fetch or save it again")
    return int(found[0]), int(found[1])


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    while True:
        while data[at] == 0xFF:
            at += 1
        marker = data[at]
        (length,) = struct.unpack_from(">H", data, at + 1)
        if marker in JPEG_SIZES:
            height, width = struct.unpack_from(">HH", data, at + 4)
            return width, height
        at += 1 + length


# --- tokens of images ---


def image_tokens(seed: str, n_tokens: int) -> tuple[int, ...]:
    """The tokens of one stretch of an image.

    Args:
        seed: Names the image, the projector, and which stretch of it this is.
        n_tokens: Its length; the first one is told by `starts_image`.
    """
    data = hashlib.shake_256(seed.encode()).digest(4 * n_tokens)
    words = struct.unpack(f"<{n_tokens}I", data)
    return tuple(-3 - 2 * (word >> 3) + (index == 0) for index, word in enumerate(words))


def starts_image(token: int) -> bool:
    """Whether a token is the first of a stretch of an image."""
    return token < -1 and token % 2 == 0


def before_image(tokens: Tokens[int], at: int) -> int:
    """The place itself, or the start of the stretch of an image that it lies within."""
    start = at
    while 0 < start < len(tokens) and tokens[start] < 0 and not starts_image(tokens[start]):
        start -= 1
    return start


def behind_image(tokens: Tokens[int], at: int) -> int:
    """The place itself, or the end of the stretch of an image that it lies within."""
    while 0 < at < len(tokens) and tokens[at] < 0 and not starts_image(tokens[at]):
        at += 1
    return at


def behind_images(tokens: Tokens[int]) -> int:
    """Where the text behind the last image of a line begins; 0 where it has none."""
    if min(tokens, default=0) >= 0:
        return 0
    return next(n for n in range(len(tokens), 0, -1) if tokens[n - 1] < 0)
