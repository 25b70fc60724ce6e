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
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from warnings import catch_warnings

from engine.errors import EngineError
from engine.files import read_bytes

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_IMAGE_BYTES = 64 << 20
MAX_PIXELS = 1 << 26
"""Up to fourteen bytes are taken for each while an image is decoded: 67 million are 900 MB."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".avif", ".gif", ".bmp", ".heic")
"""Names of images; HEIC among them, to say that it cannot be read."""
READ = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP")
"""Formats as Pillow calls them; not TIFF, whose library writes to the terminal."""
READ_BY_SERVERS = ("PNG", "JPEG", "MPO", "GIF", "BMP")
"""What llama-server reads; MPO is a JPEG with further pictures behind it."""
PHOTOS = ("JPEG", "MPO")

_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""Pillow's `Transpose` that sets upright what has each orientation of EXIF."""
_REFERENCE = re.compile(
    r"!\[(?P<name>[^\]\n]*)\]\(file://(?P<path>/[^\s()#]*)"
    r"#sha256=(?P<sha256>[0-9a-f]{64})&size=(?P<width>[1-9]\d{0,5})x(?P<height>[1-9]\d{0,5})\)"
)
_UNWRITABLE = re.compile(r"[\[\]\x00-\x1f\x7f-\x9f]")


_sizes: dict[str, tuple[int, int]] = {}
"""Of files that were whole, by their digests: decoding a photo takes 0.1 s."""


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
                f"{self.name} has {self.width:,} x {self.height:,} pixels, but the limit is "
                f"{MAX_PIXELS:,}: make a smaller copy"
            )

    def read(self) -> bytes:
        """The file, where it is still the one that was attached.

        Raises:
            ImageError: it is gone, cannot be read, or is another one now.
        """
        data = _bytes_of(
            self.path, self.name, f"{self.path} no longer exists: restore it, or edit the message"
        )
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ImageError(
                f"{self.path} is not the file that was attached as {self.name}: restore the "
                "original file, or edit the message and attach the new file"
            )
        return data

    def pixels(self) -> bytes:
        """What is looked at: `[height, width, 3]` uint8, upright, on white where transparent.

        Raises:
            ImageError: as `read`, or its pixels are not as the message says.
        """
        with _opened(self.read(), self.name) as opened:
            return self._shown(opened).convert("RGB").tobytes()

    def portable(self) -> bytes:
        """The file where every server sees the same in it, else these pixels anew."""
        data, anew = self.read(), BytesIO()
        with _opened(data, self.name) as opened:
            picture = self._shown(opened)
            if picture is opened and opened.format in READ_BY_SERVERS:
                return data
            if opened.format in PHOTOS:  # as a PNG one takes ten times as many bytes
                picture.convert("RGB").save(anew, "JPEG", quality=95, subsampling=0)
            else:
                picture.convert("RGB").save(anew, "PNG", compress_level=1)
        return anew.getvalue()

    def _shown(self, opened: "Picture") -> "Picture":
        """Its picture; messages from before EXIF was read have the size that is not turned."""
        for picture in (_upright(opened), opened):
            if picture.size == (self.width, self.height):
                return _opaque(picture)
        raise ImageError(
            f"{self.name} has {opened.width} x {opened.height} pixels but had "
            f"{self.width} x {self.height} when it was attached: attach it again"
        )


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
    """An image of a file, whole and of a size as it is looked at.

    Args:
        path: The file.
        name: What it is called in the message and in errors.

    Raises:
        ImageError: it cannot be read, is too large, cut off, or none of the formats.
    """
    data = _bytes_of(path, name, "check the path")
    digest = hashlib.sha256(data).hexdigest()
    if digest not in _sizes:
        with _opened(data, name) as opened:
            _sizes[digest] = _upright(opened).size
    return Image(name, path.resolve(), digest, *_sizes[digest])


def _bytes_of(path: Path, name: str, if_missing: str) -> bytes:
    try:
        if path.stat().st_size > MAX_IMAGE_BYTES:
            raise ImageError(
                f"{name} has {path.stat().st_size / (1 << 20):,.0f} MiB, but the limit is "
                f"{MAX_IMAGE_BYTES >> 20}: make a smaller copy"
            )
        return read_bytes(path, limit=MAX_IMAGE_BYTES)
    except FileNotFoundError as error:
        raise ImageError(f"{name} does not exist: {if_missing}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"{name} cannot be read: {reason}") from error


@contextmanager
def _opened(data: bytes, name: str) -> Iterator["Picture"]:
    """An image of which the header is read; whatever fails within is damage of the file.

    Raises:
        ImageError: it is damaged, has too many pixels, or is none of the formats.
    """
    import PIL.Image

    try:
        with catch_warnings(action="ignore"), PIL.Image.open(BytesIO(data), formats=READ) as opened:
            Image(name, Path(), "", *opened.size).check_size()
            yield opened
    except ImageError:
        raise
    except PIL.UnidentifiedImageError as error:
        raise ImageError(
            f"{name} is damaged or not a supported image ({', '.join(READ)}): save it as PNG"
        ) from error
    except PIL.Image.DecompressionBombError as error:
        raise ImageError(
            f"{name} has far more pixels than the limit of {MAX_PIXELS:,}: make a smaller copy"
        ) from error
    except Exception as error:  # each format fails in ways of its own
        raise ImageError(f"{name} is truncated or damaged: download or save it again") from error


def _upright(opened: "Picture") -> "Picture":
    """The decoded picture, turned as its EXIF says; itself where it stands upright."""
    opened.load()
    try:
        turn = _TURNS.get(opened.getexif().get(0x112, 1))
    except Exception:  # noqa: BLE001  a picture may be whole beside EXIF that is not
        turn = None
    return opened if turn is None else opened.transpose(turn)  # type: ignore[arg-type]  # an IntEnum


def _opaque(picture: "Picture") -> "Picture":
    """A picture of 8 bits without transparency: white shows through."""
    if picture.mode == "I;16":  # Pillow itself would make all above 255 white
        return picture.point(lambda value: value / 256).convert("L")
    if not picture.has_transparency_data:
        return picture
    from PIL.Image import new

    layer = picture.convert("RGBA")
    white = new("RGB", layer.size, "white")
    white.paste(layer, mask=layer)
    return white


# --- tokens of images ---


def image_tokens(seed: str, n_tokens: int) -> tuple[int, ...]:
    """The tokens of one stretch of an image.

    Args:
        seed: Names the image, the projector, which stretch of it this is, and how pixels are read.
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
