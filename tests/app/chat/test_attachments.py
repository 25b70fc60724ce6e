"""Pastes and files that go with a message."""

import os
from pathlib import Path

import pytest

from app.chat.attachments import (
    MAX_FILE_BYTES,
    AttachmentError,
    as_written,
    attached_to,
    file_names,
    folded,
    in_short,
    matching,
    mention,
    message_with,
    names_in,
    pieces,
    read_files,
    without_marks,
)
from engine.images import Image, images_in
from tests.support.filled_projectors import png


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a file of two lines."""
    (tmp_path / "here" / "src").mkdir(parents=True)
    (tmp_path / "here" / "src" / "loop.py").write_text("a = 1\nb = 2\n")
    return tmp_path / "here"


def refusal(text: str, folder: Path) -> str:
    with pytest.raises(AttachmentError) as caught:
        read_files(text, folder)
    return str(caught.value)


def test_a_paste_cannot_contain_marks() -> None:
    paste = folded("one\x03\x02two")
    text = f"before {paste} after"
    assert list(pieces(text)) == [("before ", False), ("onetwo", True), (" after", False)]
    assert without_marks(text) == "before onetwo after"
    assert in_short("x " + folded("a\nb")) == "x [2 lines pasted]"


def test_files_are_named_by_path_and_words_stay_words(folder: Path) -> None:
    text = 'see @src/loop.py, not me@mail.org or @nobody; @"a b.txt" and @src/loop.py.'
    assert names_in(text) == ["src/loop.py", "nobody", "a b.txt"]
    assert [file.name for file in read_files(text, folder)] == ["src/loop.py"]
    assert names_in(folded("@src/loop.py")) == [], "what is pasted asks for no file"


def test_a_file_follows_the_text_and_an_edit_has_its_name(
    folder: Path,
) -> None:
    text = "what does @src/loop.py do?"
    message = message_with(text, read_files(text, folder))
    assert message == f"{text}\n\nFile src/loop.py:\n```\na = 1\nb = 2\n```"
    assert as_written(message, folder) == text
    shown, files = attached_to(message)
    assert (shown, [file.text for file in files]) == (text, ["a = 1\nb = 2"])


def test_a_file_with_fences_of_its_own_stays_whole(folder: Path) -> None:
    (folder / "a.md").write_text("```py\nx\n```\n\nFile b.md:\n```\ny\n```\n")
    (folder / "b.md").write_text("`````\n")
    text = "@a.md @b.md"
    files = read_files(text, folder)
    assert attached_to(message_with(text, files))[1] == [
        type(file)(file.name, file.text.removesuffix("\n")) for file in files
    ]


@pytest.mark.parametrize(
    "text", ["@src", "class A:\n    @src\n    def f(): ...", "see @src/ and @."]
)
def test_the_name_of_a_folder_is_a_word_of_the_text(text: str, folder: Path) -> None:
    assert read_files(text, folder) == []


@pytest.mark.parametrize(
    "text", ["read @src/loop.py", "@src/loop.py or @b.md?", "@b.md @src/loop.py"]
)
def test_a_question_sent_from_another_folder_has_its_files(text: str, folder: Path) -> None:
    (folder / "b.md").write_text("`````\nnot a file\n")
    message = message_with(text, read_files(text, folder))
    elsewhere = folder / "src"
    (elsewhere / "b.md").write_text("another\n")
    again = as_written(message, elsewhere)
    sent = message_with(again, read_files(again, elsewhere))
    shown, files = attached_to(sent)
    texts = {file.name: file.text for file in files}
    assert shown == text
    assert texts["src/loop.py"] == "a = 1\nb = 2"
    assert texts.get("b.md", "another") == "another", "a file that is there is read again"
    assert set(texts) == set(names_in(text))
    assert as_written(message, folder) == text


def test_a_long_message_comes_back_as_one_line_and_a_short_one_as_it_was(folder: Path) -> None:
    long = "line\n" * 20
    assert list(pieces(as_written(long, folder))) == [(long, True)]
    assert as_written("short", folder) == "short"


def test_binary_large_and_unreadable_files_are_refused(folder: Path) -> None:
    (folder / "b.bin").write_bytes(b"a\0b")
    (folder / "photo.PNG").write_bytes(b"\x89PNG\0")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    (folder / "huge.txt").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    os.mkfifo(folder / "pipe")
    assert "binary" in refusal("@b.bin", folder)
    assert "not UTF-8 text (byte 3)" in refusal("@latin.txt", folder)
    assert "exceeds the limit" in refusal("@huge.txt", folder)
    assert "it is a pipe or a device, not a file" in refusal("@pipe", folder)


def test_a_link_out_of_the_folder_is_refused(
    folder: Path,
) -> None:
    (folder.parent / "secret.txt").write_text("secret")
    (folder / "out.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "in.py").symlink_to(folder / "src" / "loop.py")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "gone").symlink_to(folder / "nothing")
    assert "points outside" in refusal("@out.txt", folder)
    assert "is outside" in refusal("@../secret.txt", folder)
    assert "is outside" in refusal(f"@{folder.parent / 'secret.txt'}", folder)
    assert "cannot be read" in refusal("@loop", folder)
    assert "cannot be read" in refusal("@gone", folder)
    assert read_files("@in.py", folder)[0].text == "a = 1\nb = 2\n"


def test_names_match_anywhere_without_links_and_hidden_folders(
    folder: Path,
) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "loop").write_text("")
    (folder / "loops").mkdir()
    (folder / "loops" / "b.txt").write_text("")
    (folder / "round").symlink_to(folder)
    names = file_names(folder)
    assert names == ["loops/b.txt", "src/loop.py"]
    assert matching(names, "LOOP") == ["src/loop.py", "loops/b.txt"]
    assert matching(names, "lpy") == ["src/loop.py"]
    assert matching(names, "lt") == matching(names, "pyl") == []
    assert file_names(folder, limit=1) == ["loops/b.txt"]
    assert mention("a b.txt") == '@"a b.txt"'
    assert mention("src/loop.py") == "@src/loop.py"


def test_an_image_replaces_its_name_and_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    png(folder / "a b.png", width=4, height=3)
    text = 'is @"a b.png" like @src/loop.py, or @"a b.png"?'
    files = read_files(text, folder)
    message = message_with(text, files)
    (image,) = images_in(message)
    assert (image.name, image.path, image.width) == ("a b.png", folder / "a b.png", 4)
    assert message.startswith(f"is {image.reference} like @src/loop.py, or @")
    shown, attached = attached_to(message)
    assert shown == text
    assert [file.name for file in attached] == ["a b.png", "src/loop.py"]
    assert as_written(message, folder) == text
    (folder / "a b.png").unlink()
    assert as_written(message, folder).startswith(f"is {image.reference} like"), (
        "the stored path is used"
    )
    assert images_in(message_with(as_written(message, folder), ())) == [image]


def test_an_image_at_the_end_of_a_sentence_keeps_the_sentence(folder: Path) -> None:
    png(folder / "a.png")
    text = "what is on @a.png."
    message = message_with(text, read_files(text, folder))
    assert message == f"what is on {images_in(message)[0].reference}."


def test_what_pastes_and_files_name_as_images_is_text(folder: Path) -> None:
    reference = Image("x.png", Path("/x.png"), "0" * 64, 1, 1).reference
    (folder / "chat.md").write_text(f"see {reference}\n")
    text = f"{folded(reference)} @chat.md"
    message = message_with(text, read_files(text, folder))
    assert images_in(message) == []
    assert message.count("@x.png") == 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [(b"\x89PNG\r\n\x1a\n" + bytes(9), "damaged"), (b"hello", "not a supported image")],
)
def test_a_bad_image_is_refused_by_its_name(data: bytes, reason: str, folder: Path) -> None:
    (folder / "a.PNG").write_bytes(data)
    assert refusal("@a.PNG", folder).startswith("@a.PNG is ")
    assert reason in refusal("@a.PNG", folder)
    (folder / "out.png").symlink_to(png(folder.parent / "other.png"))
    assert "@out.png points outside" in refusal("@out.png", folder)


def test_a_message_of_files_that_never_end_is_looked_at_once() -> None:
    for block in ("\n\nFile a:\n```\n", "\n\nFile a:\n```\n`", "\n\nFile a:\n```\n\n```x\n"):
        message = "@a" + block * 70_000
        assert attached_to(message) == (message, [])
    whole = "@a" + "\n\nFile a:\n```\nx\n```" * 50_000
    text, files = attached_to(whole)
    assert (text, len(files), files[0].text) == ("@a", 50_000, "x")
