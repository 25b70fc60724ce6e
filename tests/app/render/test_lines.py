from hypothesis import given
from hypothesis import strategies as st

from app.render.help import GLOSSARY, KeyHelp, KeySection, help_lines
from app.render.lines import Line, Run, clipped, folded, padded, plain, spread, width_of, wrapped

PIECES = ["a", "b", " ", "  ", "é", "漢", "👩\u200d💻", "e\u0301", "-"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)
WIDTHS = st.integers(2, 20)


def line(*parts: str | Run) -> Line:
    return tuple(Run(part) if isinstance(part, str) else part for part in parts)


@given(TEXT, WIDTHS)
def test_wrapped_lines_fit_and_lose_nothing_but_spaces_at_breaks(text: str, width: int) -> None:
    parts = wrapped((Run(text),), width)
    assert all(width_of(part) <= width for part in parts if plain(part).strip())
    assert "".join("".join(map(plain, parts)).split()) == "".join(text.split())


@given(TEXT, WIDTHS)
def test_folded_lines_keep_every_character(text: str, width: int) -> None:
    parts = folded((Run(text),), width)
    assert "".join(map(plain, parts)) == text
    assert all(width_of(part) <= width for part in parts)


@given(TEXT, st.integers(0, 20))
def test_a_clipped_line_is_never_wider_than_asked(text: str, width: int) -> None:
    assert width_of(clipped((Run(text),), width)) <= width


def test_styles_stay_with_their_words() -> None:
    parts = wrapped((Run("one two", "a"), Run("three four", "b")), 10)
    assert [[(run.text, run.style) for run in part] for part in parts] == [
        [("one", "a")], [("two", "a"), ("three", "b")], [("four", "b")],
    ]  # fmt: skip


def test_words_break_at_spaces() -> None:
    assert [plain(part) for part in wrapped(line("one two three"), 8)] == ["one two", "three"]


def test_a_clipped_line_ends_with_a_sign() -> None:
    assert plain(clipped(line("abcdef"), 4)) == "abc…"


def test_padding_reaches_the_width() -> None:
    assert plain(padded(line("ab"), 4)) == "ab  "


def test_the_right_part_of_a_spread_line_wins() -> None:
    assert plain(spread(line("a long left side"), line("right"), 12)) == "a lon… right"


@given(st.integers(50, 200))
def test_the_help_loses_no_word_at_any_width(width: int) -> None:
    keys = (KeyHelp("ctrl+r", "Restart the engine and load its model again", "engine-restart"),)
    lines = list(map(plain, help_lines((KeySection("chat", keys),), width)))
    shown = "".join("".join(lines).replace("engine-restart", "").split())
    for term, meaning in (("ctrl+r", keys[0].what), *GLOSSARY):
        assert "".join(f"{term}{meaning}".split()) in shown
    assert max(map(len, lines)) <= width
