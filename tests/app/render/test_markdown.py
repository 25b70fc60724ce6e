import random

import pytest

from app.render.lines import plain, width_of
from app.render.markdown import MarkdownDocument, code_blocks

HARD = """# Title

Text **bold *both*** `code` [label](http://elsewhere.example) end
soft break

| a | b |
|---|---|
| 1 | a cell that is much longer than the others and must wrap |
```python
def f(x):
    return "s"  # comment
```
- one
- two
  1. nested

     loose
> quote
> more

    indented code
---
Setext
===
***
| not a table
"""


def lines(source: str, width: int = 60) -> list[str]:
    return [plain(line).rstrip() for line in MarkdownDocument(source).lines(width)]


@pytest.mark.parametrize("seed", range(20))
def test_text_that_streams_in_any_pieces_is_laid_out_like_the_whole(seed: int) -> None:
    pieces = random.Random(seed)
    document = MarkdownDocument()
    start = 0
    while start < len(HARD):
        end = start + pieces.randint(1, 9)
        document.append(HARD[start:end])
        document.lines(48)
        start = end
    assert document.lines(48) == MarkdownDocument(HARD).lines(48)


@pytest.mark.parametrize("width", [8, 20, 60, 200])
def test_no_line_is_wider_than_asked(width: int) -> None:
    assert all(width_of(line) <= max(width, 14) for line in MarkdownDocument(HARD).lines(width))


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n```\ncode\n```\n", "a │ b/──┼──/1 │ 2// code"),
        ("[bold red]x[/] [nothing]", "[bold red]x[/] [nothing]"),
        ("<b>alert(1)<b> a<br>b", "<b>alert(1)<b> a<br>b"),
        ("[your bank](evil.example)", "your bank (evil.example)"),
        ("```\n\x1b[2J\n```", " ␛[2J"),
        ("roses\nviolets", "roses/violets"),
        ("9. nine\n10. ten\n    - deep", " 9. nine/10. ten/    ◦ deep"),
        ("see [a][1]\n\n[1]: x.example", "see [a][1]//[1]: x.example"),
        ("> one\n>\n> two", "▎ one/▎/▎ two"),
    ],
    ids=["table", "markup", "html", "address", "escape", "newline", "list", "link", "quote"],
)
def test_nothing_of_a_reply_vanishes_and_markup_of_others_is_text(source: str, shown: str) -> None:
    assert lines(source) == ([shown] if "[/]" in shown else shown.split("/"))


def test_a_long_line_of_code_is_folded_and_loses_nothing() -> None:
    code = "x = " + "1 + " * 30 + "1"
    shown = MarkdownDocument(f"```\n{code}\n```").lines(20)
    assert "".join(plain(line)[1:-1] for line in shown).rstrip() == code


def test_known_languages_are_coloured_and_unknown_ones_shown_plain() -> None:
    styles = {run.style for line in MarkdownDocument("```python\ndef f(): 1\n```").lines(40)
              for run in line}  # fmt: skip
    assert "code code-keyword" in styles
    assert lines("```nonsense\nx\n```") == [" nonsense", " x"]


def test_code_blocks_are_found_in_their_order_and_in_lists() -> None:
    assert code_blocks("```\na\n```\n- x\n  ```py\n  b\n  ```\n") == ["a\n", "b\n"]


def test_what_the_parser_drops_for_its_nesting_is_shown_as_text() -> None:
    assert "".join(lines(">" * 500 + " deep", 40)).endswith("> deep")
    assert MarkdownDocument("\n".join("  " * i + "- x" for i in range(200))).lines(40)
