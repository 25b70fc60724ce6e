"""Colours by the origin of tokens."""

from hypothesis import given
from hypothesis import strategies as st

from app.chat.spans import TokenSpan
from app.render.lines import Run, plain, wrapped
from app.render.transcript import TintedText
from app.sanitize import visible
from engine.events import TokenKind

PIECES = [
    TokenSpan("The ", TokenKind.PLAIN),
    TokenSpan("red fox ", TokenKind.DRAFT, "lookup"),
    TokenSpan("ran", TokenKind.CORRECTION, "suffix"),
    TokenSpan(" home\nand", TokenKind.DRAFT, "suffix"),
    TokenSpan(" slept", TokenKind.DRAFT, "my-own"),
    TokenSpan(".", TokenKind.BONUS, "my-own"),
]


def styles(text: TintedText) -> dict[str, str]:
    return {run.text.strip(): run.style for line in text.lines(80) for run in line}


def test_accepted_drafts_have_the_colour_of_their_source_and_nothing_else_has() -> None:
    assert styles(TintedText("source", PIECES)) == {
        "The": "", "red fox": "source-lookup", "ran": "", "home": "source-suffix",
        "and": "source-suffix", "slept": "source-other", ".": "",
    }  # fmt: skip


@given(st.lists(st.text(alphabet="ab \n\x1b表", max_size=9), max_size=8), st.integers(2, 30))
def test_the_text_is_the_same_however_it_came_and_whatever_its_colours(
    parts: list[str], width: int
) -> None:
    streamed = TintedText("source")
    for i, part in enumerate(parts):
        source = "lookup" if i % 2 else "suffix"
        streamed.append([TokenSpan(part, TokenKind.DRAFT, source)])
        streamed.lines(width)
    whole = visible("".join(parts)).split("\n")
    literal = [line for row in whole for line in wrapped((Run(row),), width)]
    assert [plain(line) for line in streamed.lines(width)] == [plain(line) for line in literal]
