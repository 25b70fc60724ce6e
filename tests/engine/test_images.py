import struct
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.images import (
    MAX_IMAGE_BYTES,
    MAX_PIXELS,
    Image,
    ImageError,
    before_image,
    behind_image,
    behind_images,
    image_tokens,
    images_in,
    parts_of,
    read_image,
    starts_image,
)
from tests.filled_projectors import png

JPEG = (
    b"\xff\xd8\xff\xe0\x00\x04JF\xff\xc0\x00\x11\x08"
    + struct.pack(">HH", 30, 40)
    + bytes(12)
    + b"\xff\xd9"
)
GIF = b"GIF89a" + struct.pack("<HH", 40, 30) + bytes(9) + b";"
BMP = b"BM" + struct.pack("<I", 60) + bytes(12) + struct.pack("<ii", 40, -30) + bytes(34)


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


@pytest.mark.parametrize(("name", "data"), [("a.jpg", JPEG), ("a.gif", GIF), ("a.bmp", BMP)])
def test_the_size_is_that_of_the_header(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    image = read_image(tmp_path / name, name)
    assert (image.width, image.height) == (40, 30)
    assert image.read() == data


def test_a_file_that_is_no_whole_image_is_refused_in_a_sentence(tmp_path: Path) -> None:
    whole = png(tmp_path / "a.png").read_bytes()
    cases = {
        "cut off: its end": whole[:-30],
        "cut off: its header": whole[:18],
        "is a WebP": b"RIFF\0\0\0\0WEBPVP8 ",
        "none of the images": b"\x7fELF" + bytes(40),
        "pixels, and at most": whole[:16] + struct.pack(">II", 99_999, 99_999) + whole[24:],
        "0 x 5 pixels": whole[:16] + struct.pack(">II", 0, 5) + whole[24:],
    }
    for said, data in cases.items():
        (tmp_path / "b.png").write_bytes(data)
        with pytest.raises(ImageError, match=said):
            read_image(tmp_path / "b.png", "b.png")
    for path, said in (
        (tmp_path, "cannot be read"),
        (tmp_path / "no.png", "check the path"),
        (Path("/dev/zero"), "cannot be read"),
    ):
        with pytest.raises(ImageError, match=said):
            read_image(path, "x")


@given(st.data())
def test_a_damaged_header_is_read_or_refused(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = png(Path(folder) / "a")
        whole = bytearray(data.draw(st.sampled_from([path.read_bytes(), JPEG, GIF, BMP])))
        for _ in range(data.draw(st.integers(1, 4))):
            whole[data.draw(st.integers(0, min(len(whole), 40) - 1))] = data.draw(
                st.integers(0, 255)
            )
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
        with suppress(ImageError):
            image = read_image(path, "a")
            assert 0 < image.width * image.height <= MAX_PIXELS


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.png").open("wb") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    with pytest.raises(ImageError, match="images have at most 64"):
        read_image(tmp_path / "a.png", "a.png")


@given(st.text(max_size=20), st.integers(1, 80))
def test_tokens_of_an_image_are_none_of_a_vocabulary(seed: str, n_tokens: int) -> None:
    tokens = image_tokens(seed, n_tokens)
    assert len(tokens) == n_tokens
    assert all(-(2**31) <= token < -1 for token in tokens)
    assert [starts_image(token) for token in tokens] == [True] + [False] * (n_tokens - 1)
    assert image_tokens(f"{seed}!", 80)[:n_tokens] != tokens


@given(st.lists(st.integers(0, 4), max_size=8), st.data())
def test_a_place_within_a_stretch_moves_to_its_ends(sizes: list[int], data: st.DataObject) -> None:
    line, ends = [7], {0, 1}
    for index, size in enumerate(sizes):
        line += image_tokens(str(index), size) if size else (index,)
        ends.add(len(line))
    at = data.draw(st.integers(0, len(line)))
    assert before_image(line, at) == max(end for end in ends if end <= at)
    assert behind_image(line, at) == min(end for end in ends if end >= at)
    start = behind_images(line)
    assert all(token >= 0 for token in line[start:])
    assert start == 0 or line[start - 1] < 0
