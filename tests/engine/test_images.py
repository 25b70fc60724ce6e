import struct
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL.BmpImagePlugin import BmpImageFile
from PIL.Image import Exif, fromarray, new
from PIL.Image import Image as Picture
from PIL.Image import open as open_image
from PIL.ImageOps import exif_transpose

from engine.images import (
    MAX_IMAGE_BYTES,
    MAX_PIXELS,
    READ,
    Image,
    ImageError,
    end_of_images,
    image_end_at,
    image_start_at,
    image_tokens,
    images_in,
    parts_of,
    read_image,
    starts_image,
)

RED, BLUE = (255, 0, 0), (0, 0, 255)


def encoded(kind: str, picture: Picture, **options: object) -> bytes:
    data = BytesIO()
    picture.save(data, kind, **options)
    return data.getvalue()


def half_red(mode: str = "RGB") -> Picture:
    """Forty wide and thirty high, its upper half red and the lower blue."""
    picture = new("RGB", (40, 30), BLUE)
    picture.paste(RED, (0, 0, 40, 15))
    return picture.convert(mode)


def turned(orientation: int) -> bytes:
    """A JPEG of `half_red` with that EXIF orientation."""
    exif = Exif()
    exif[0x112] = orientation
    return encoded("JPEG", half_red(), exif=exif, quality=100, subsampling=0)


SEEDS = (
    *(encoded(kind, half_red()) for kind in READ),
    *(encoded(kind, half_red("RGBA")) for kind in ("PNG", "WEBP", "AVIF")),
    turned(6),
)


def attached(path: Path, data: bytes) -> Image:
    path.write_bytes(data)
    return read_image(path, path.name)


def colours(image: Image) -> NDArray[np.uint8]:
    return np.frombuffer(image.pixels(), np.uint8).reshape(image.height, image.width, 3)


@given(st.text(min_size=1, max_size=40), st.text(max_size=30), st.text(max_size=30))
def test_a_reference_is_found_again_in_any_text(name: str, before: str, after: str) -> None:
    path = Path("/a folder (1)/[x]#y/ünï.png")
    image = Image(name, path, "ab" * 32, 640, 480)
    text = f"{before}{image.reference}{after}"
    parts = [part for part in parts_of(text) if isinstance(part, Image)]
    assert [(part.path, part.sha256, part.width, part.height) for part in parts] == [
        (path, image.sha256, 640, 480)
    ]
    written = "".join(part if isinstance(part, str) else part.reference for part in parts_of(text))
    assert written == text


@pytest.mark.parametrize(
    "text",
    [
        "![a](file:///a.png)",
        "![a](file:///a.png#sha256=12&size=3x4)",
        f"![a](file:///a.png#sha256={'a' * 64}&size=0x4)",
        f"![a](https://host/a.png#sha256={'a' * 64}&size=3x4)",
        f"[a](file:///a.png#sha256={'a' * 64}&size=3x4)",
    ],
)
def test_what_is_no_reference_is_text(text: str) -> None:
    assert images_in(text) == []
    assert list(parts_of(text)) == [text]


@pytest.mark.parametrize("kind", READ)
def test_each_format_is_read_with_its_colours(kind: str, tmp_path: Path) -> None:
    data = encoded(kind, half_red())
    image = attached(tmp_path / "a", data)
    assert (image.width, image.height) == (40, 30)
    assert image.read() == data
    assert np.abs(colours(image)[[2, 27], 20].astype(int) - [RED, BLUE]).max() < 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_lies_as_the_camera_was_held(orientation: int, tmp_path: Path) -> None:
    image = attached(tmp_path / "a.jpg", turned(orientation))
    assert (image.width, image.height) == ((40, 30) if orientation < 5 else (30, 40))
    picture = open_image(tmp_path / "a.jpg")
    assert np.array_equal(colours(image), np.asarray(exif_transpose(picture)))
    sent = np.asarray(open_image(BytesIO(image.portable()))).astype(int)
    assert abs(sent - colours(image)).max() <= 8, "a photo stays one, nearly as it was"


def test_broken_exif_leaves_the_picture_as_it_lies(tmp_path: Path) -> None:
    image = attached(tmp_path / "a", encoded("WEBP", half_red(), exif=b"Exif\0\0broken"))
    assert (image.width, image.height) == (40, 30)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "AVIF", "GIF"])
def test_a_transparent_picture_lies_on_white(kind: str, tmp_path: Path) -> None:
    picture = half_red("RGBA")
    picture.paste((0, 0, 0, 0), (0, 0, 20, 30))
    options = {"lossless": True} if kind == "WEBP" else {}
    image = attached(tmp_path / "a", encoded(kind, picture, **options))
    assert colours(image)[:, :18].min() > 250
    assert colours(image)[2, 30, 0] > 200
    assert np.array_equal(np.asarray(open_image(BytesIO(image.portable()))), colours(image))


def test_greys_of_16_bits_stay_grey(tmp_path: Path) -> None:
    image = attached(tmp_path / "a.png", encoded("PNG", fromarray(np.full((4, 4), 0x8000, "u2"))))
    assert (colours(image) == 128).all()


def test_servers_get_the_file_where_they_read_it_and_else_a_png(tmp_path: Path) -> None:
    for kind in READ:
        image = attached(tmp_path / "a", encoded(kind, half_red()))
        sent = open_image(BytesIO(image.portable()))
        assert (image.portable() == image.read()) == (kind not in ("WEBP", "AVIF"))
        assert np.array_equal(np.asarray(sent.convert("RGB")), colours(image))


@pytest.mark.parametrize("kind", READ)
def test_a_file_that_is_cut_off_is_refused(kind: str, tmp_path: Path) -> None:
    whole = encoded(kind, half_red().effect_spread(9))
    for n_bytes in (len(whole) - 30, len(whole) // 2, 20):
        with pytest.raises(ImageError, match=r"a is (truncated or )?damaged"):
            attached(tmp_path / "a", whole[:n_bytes])


def test_a_file_that_is_no_image_is_refused_in_a_sentence(tmp_path: Path) -> None:
    cases = {
        r"not a supported image \(PNG, .*as PNG": b"\x7fELF" + bytes(40),
        "not a supported image": encoded("TIFF", half_red()),
    }
    for message, data in cases.items():
        with pytest.raises(ImageError, match=message):
            attached(tmp_path / "b.png", data)
    for path, message in (
        (tmp_path, "cannot be read"),
        (tmp_path / "no.png", "check the path"),
        (Path("/dev/zero"), "cannot be read"),
    ):
        with pytest.raises(ImageError, match=message):
            read_image(path, "x")


@pytest.mark.parametrize(
    ("width", "message"), [(12_000, "12,000 x 8,000 pixels"), (60_000, "far more pixels")]
)
def test_too_many_pixels_are_refused_before_any_is_decoded(
    width: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BmpImageFile, "load", lambda _: pytest.fail("decoded"))
    header = struct.pack("<2sIIIIiiHH24x", b"BM", 99, 0, 54, 40, width, 8_000, 1, 24)
    with pytest.raises(ImageError, match=message):
        attached(tmp_path / "a.bmp", header)


@given(st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    whole = bytearray(data.draw(st.sampled_from(SEEDS)))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    whole[data.draw(st.integers(8, len(whole))) :] = data.draw(st.binary(max_size=9))
    with TemporaryDirectory() as folder, suppress(ImageError):
        image = attached(Path(folder) / "a", bytes(whole))
        assert 0 < image.width * image.height <= MAX_PIXELS
        assert colours(image).shape == (image.height, image.width, 3)
        assert image.portable()


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    with pytest.raises(ImageError, match="the limit is 64"):
        read_image(tmp_path / "a.png", "a.png")


@given(st.text(max_size=20), st.integers(1, 80))
def test_tokens_of_an_image_are_none_of_a_vocabulary(seed: str, n_tokens: int) -> None:
    tokens = image_tokens(seed, n_tokens)
    assert len(tokens) == n_tokens
    assert all(-(2**31) <= token < -1 for token in tokens)
    assert [starts_image(token) for token in tokens] == [True] + [False] * (n_tokens - 1)
    assert image_tokens(f"{seed}!", 80)[:n_tokens] != tokens


@given(st.lists(st.integers(0, 4), max_size=8), st.data())
def test_an_index_within_a_segment_moves_to_its_ends(sizes: list[int], data: st.DataObject) -> None:
    line, ends = [7], {0, 1}
    for index, size in enumerate(sizes):
        line += image_tokens(str(index), size) if size else (index,)
        ends.add(len(line))
    at = data.draw(st.integers(0, len(line)))
    assert image_start_at(line, at) == max(end for end in ends if end <= at)
    assert image_end_at(line, at) == min(end for end in ends if end >= at)
    start = end_of_images(line)
    assert all(token >= 0 for token in line[start:])
    assert start == 0 or line[start - 1] < 0
