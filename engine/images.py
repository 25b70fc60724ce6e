"""Images in messages: their Markdown reference, their file, and their tokens in a prompt.

A message refers to an image in Markdown, with digest and size of the attached file:
`![name](file:///folder/picture.png#sha256=...&size=640x480)`. In the prompt it becomes negative
token ids, outside the vocabulary, that depend only on the image and the projector. So the cache
finds saved states of a prompt even if the file is gone.
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
from engine.files import read_bytes, reason_of

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_IMAGE_BYTES = 64 << 20
MAX_PIXELS = 1 << 26
"""Decoding needs up to 14 bytes per pixel: 67 million pixels are 900 MB."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".avif", ".gif", ".bmp", ".heic")
"""Suffixes of image files; with HEIC, to report that it is not supported."""
READ = ("PNG", "JPEG", "WEBP", "AVIF", "GIF", "BMP")
"""Supported formats as Pillow names them; not TIFF, whose library writes to the terminal."""
READ_BY_SERVERS = ("PNG", "JPEG", "MPO", "GIF", "BMP")
"""Formats that llama-server reads; MPO is a JPEG followed by further pictures."""
PHOTOS = ("JPEG", "MPO")

_TURNS = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}
"""Pillow's `Transpose` that corrects each EXIF orientation."""
_REFERENCE = re.compile(
    r"!\[(?P<name>[^\]\n]*)\]\(file://(?P<path>/[^\s()#]*)"
    r"#sha256=(?P<sha256>[0-9a-f]{64})&size=(?P<width>[1-9]\d{0,5})x(?P<height>[1-9]\d{0,5})\)"
)
_UNWRITABLE = re.compile(r"[\[\]\x00-\x1f\x7f-\x9f]")


_sizes: dict[str, tuple[int, int]] = {}
"""Sizes of valid files by digest: decoding a photo takes 0.1 s."""


class ImageError(EngineError):
    """An image cannot be read, or the model cannot process images."""

    title = "The image cannot be used"


@dataclass(frozen=True, slots=True)
class Image:
    """An attached image."""

    name: str
    """Name in the message."""
    path: Path
    sha256: str
    """Digest of the file: 64 hexadecimal digits."""
    width: int
    height: int

    @property
    def reference(self) -> str:
        """Markdown reference in a message."""
        name = _UNWRITABLE.sub("_", self.name)
        address = f"file://{quote(str(self.path), safe='/')}"
        return f"![{name}]({address}#sha256={self.sha256}&size={self.width}x{self.height})"

    def check_size(self) -> None:
        """Raise `ImageError` if the number of pixels is 0 or exceeds `MAX_PIXELS`."""
        if not 0 < self.width * self.height <= MAX_PIXELS:
            raise ImageError(
                f"{self.name} has {self.width:,} x {self.height:,} pixels, but the limit is "
                f"{MAX_PIXELS:,}: make a smaller copy"
            )

    def read(self) -> bytes:
        """Read the file and check that it is still the attached one.

        Raises:
            ImageError: it is missing, cannot be read, or has another digest.
        """
        missing = f"{self.path} no longer exists: restore the file, or edit the message"
        data = _bytes_of(self.path, self.name, missing)
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ImageError(
                f"{self.path} is not the file that was attached as {self.name}: restore the "
                "original file, or edit the message and attach the new file"
            )
        return data

    def pixels(self) -> bytes:
        """Pixels `[height, width, 3]` uint8, upright, with transparency on white.

        Raises:
            ImageError: as `read`, or the size differs from the message.
        """
        with _opened(self.read(), self.name) as opened:
            return self._shown(opened).convert("RGB").tobytes()

    def portable(self) -> bytes:
        """The file if all servers decode it to the same pixels, else re-encoded pixels."""
        data, encoded = self.read(), BytesIO()
        with _opened(data, self.name) as opened:
            picture = self._shown(opened)
            if picture is opened and opened.format in READ_BY_SERVERS:
                return data
            if opened.format in PHOTOS:  # a PNG would be ten times as large
                picture.convert("RGB").save(encoded, "JPEG", quality=95, subsampling=0)
            else:
                picture.convert("RGB").save(encoded, "PNG", compress_level=1)
        return encoded.getvalue()

    def _shown(self, opened: "Picture") -> "Picture":
        """The upright picture; raises `ImageError` if its size is not that in the message."""
        picture = _upright(opened)
        if picture.size == (self.width, self.height):
            return _opaque(picture)
        raise ImageError(
            f"{self.name} has {opened.width} x {opened.height} pixels but had "
            f"{self.width} x {self.height} when it was attached: attach it again"
        )


def data_url(data: bytes) -> str:
    """A `data:` URL of an image, for OpenAI-compatible servers."""
    kind = {b"\xff\xd8": "jpeg", b"GI": "gif", b"BM": "bmp"}.get(data[:2], "png")
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def parts_of(text: str) -> Iterator[str | Image]:
    """Split a text into plain text and image references."""
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
    """The images that a text refers to, in order."""
    if "#sha256=" not in text:
        return []
    return [part for part in parts_of(text) if isinstance(part, Image)]


def read_image(path: Path, name: str) -> Image:
    """Read and validate an image file, which messages and errors call `name`.

    Raises:
        ImageError: it cannot be read, is too large, truncated, or of an unsupported format.
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
                f"{name} is {path.stat().st_size / (1 << 20):,.0f} MiB, but the limit is "
                f"{MAX_IMAGE_BYTES >> 20} MiB: make a smaller copy"
            )
        return read_bytes(path, limit=MAX_IMAGE_BYTES)
    except FileNotFoundError as error:
        raise ImageError(f"{name} does not exist: {if_missing}") from error
    except (OSError, ValueError) as error:
        raise ImageError(f"{name} cannot be read: {reason_of(error)}") from error


@contextmanager
def _opened(data: bytes, name: str) -> Iterator["Picture"]:
    """Open an image; any failure within the block counts as damage of the file.

    Raises:
        ImageError: it is damaged, has too many pixels, or an unsupported format.
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
    except Exception as error:  # formats raise different errors
        raise ImageError(
            f"{name} is truncated or damaged: download or save the image again"
        ) from error


def _upright(opened: "Picture") -> "Picture":
    """Decode a picture and rotate it by its EXIF orientation; return it unchanged if upright."""
    opened.load()
    try:
        turn = _TURNS.get(opened.getexif().get(0x112, 1))
    except Exception:  # noqa: BLE001  damaged EXIF data does not make the picture unusable
        turn = None
    return opened if turn is None else opened.transpose(turn)  # type: ignore[arg-type]  # an IntEnum


def _opaque(picture: "Picture") -> "Picture":
    """Convert to 8 bits and put transparent pixels on white."""
    if picture.mode == "I;16":  # Pillow's own conversion clips at 255
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
    """Negative token ids for one segment of an image; `starts_image` is true for the first.

    Args:
        seed: Identifies the image, the projector, the segment and the preprocessing.
        n_tokens: Length of the segment.
    """
    data = hashlib.shake_256(seed.encode()).digest(4 * n_tokens)
    words = struct.unpack(f"<{n_tokens}I", data)
    return tuple(-3 - 2 * (word >> 3) + (index == 0) for index, word in enumerate(words))


def starts_image(token: int) -> bool:
    """Whether a token is the first of an image segment."""
    return token < -1 and token % 2 == 0


def image_start_at(tokens: Tokens[int], at: int) -> int:
    """Start of the image segment that contains index `at`, or `at` outside images."""
    start = at
    while 0 < start < len(tokens) and tokens[start] < 0 and not starts_image(tokens[start]):
        start -= 1
    return start


def image_end_at(tokens: Tokens[int], at: int) -> int:
    """End of the image segment that contains index `at`, or `at` outside images."""
    while 0 < at < len(tokens) and tokens[at] < 0 and not starts_image(tokens[at]):
        at += 1
    return at


def end_of_images(tokens: Tokens[int]) -> int:
    """Index after the last image token; 0 without images."""
    if min(tokens, default=0) >= 0:
        return 0
    return next(n for n in range(len(tokens), 0, -1) if tokens[n - 1] < 0)
