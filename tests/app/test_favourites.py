"""The user's marks of models: several programs write them, and no damage takes them away."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.library import Favourites


def test_marks_of_several_at_once_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "data" / "favourites.json"
    names = [str(number) for number in range(60)]

    def mark(name: str) -> None:
        Favourites(path).mark(name, is_favourite=True)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(mark, names))
    assert Favourites(path).all() == {*names}
    Favourites(path).mark("7", is_favourite=False)
    assert Favourites(path).all() == {*names} - {"7"}


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1, "favourites": ["a", "b"',
        '{"version": 2, "favourites": ["a", "b"]}',
        '{"version": 1, "favourites": "a"}',
        "[]",
        "",
        "\xff",
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside_with_a_word(tmp_path: Path, text: str) -> None:
    path = tmp_path / "favourites.json"
    path.write_bytes(text.encode("latin-1"))
    assert Favourites(path).all() == frozenset()
    assert path.read_bytes() == text.encode("latin-1"), "reading changes nothing"
    note = Favourites(path).mark("new", is_favourite=True)
    [aside] = tmp_path.glob("*.damaged")
    assert str(aside) in str(note)
    assert aside.read_bytes() == text.encode("latin-1")
    assert Favourites(path).all() == {"new"}
    assert Favourites(path).mark("other", is_favourite=True) is None
