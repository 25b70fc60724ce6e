"""Commands are found in a shell's text as a shell would find them."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.presets.command import UNSET, Shell
from engine.presets.export import ImportedFileError

WORDS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
    min_size=1,
    max_size=5,
)


def words(text: str) -> list[tuple[str, ...]]:
    return [each.words for each in Shell().commands(text)]


@given(WORDS.filter(lambda each: "=" not in each[0] and each[0] != "export"))
def test_what_shlex_quotes_comes_back(given_words: list[str]) -> None:
    assert words(shlex.join(given_words)) == [tuple(given_words)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a \\\n  --b 'c d'", ("a", "--b", "c d")),
        ("a \\\r\n --b", ("a", "--b")),
        ("# not this\na b # nor this", ("a", "b")),
        ("a b#c", ("a", "b#c")),
        ('a "x \\"y\\" \\$z"', ("a", 'x "y" $z')),
        ('exec a --b "$@"', ("exec", "a", "--b")),
        ("a 'it'\"'\"'s'", ("a", "it's")),
        ("a '' b", ("a", "", "b")),
    ],
)
def test_quotes_comments_and_continued_lines(text: str, expected: tuple[str, ...]) -> None:
    assert words(text) == [expected]


def test_variables_of_the_text_are_put_in_and_others_left() -> None:
    text = 'MODEL="/models/a b.gguf"\nserver -m "$MODEL" -c ${N} \'$MODEL\''
    assert words(text) == [("server", "-m", "/models/a b.gguf", "-c", f"{UNSET}${{N}}", "$MODEL")]


def test_assignments_before_a_command_are_its_environment() -> None:
    found = [
        dict(each.environment) for each in Shell().commands("export A=1\nB=2 server -x\nother")
    ]
    assert found == [{"A": "1", "B": "2"}, {"A": "1"}]


def test_operators_end_a_command() -> None:
    assert words("cd /x && server -c 1 > log 2>&1 &") == [
        ("cd", "/x"), ("server", "-c", "1"), ("log", "2"), ("1",)
    ]  # fmt: skip


@given(st.text(max_size=60))
def test_any_text_ends(text: str) -> None:
    assert all(isinstance(word, str) for each in Shell().commands(text) for word in each.words)


@pytest.mark.parametrize(
    "text",
    [
        "A0=aa\n" + "".join(f'A{n + 1}="$A{n}$A{n}"\n' for n in range(40)),
        "A=aaaaaaaa\n" + "$A" * 200_000,
    ],
    ids=["doubled", "repeated"],
)
def test_variables_come_to_so_much_and_no_more(text: str) -> None:
    with pytest.raises(ImportedFileError, match="expand to more than"):
        words(text)
