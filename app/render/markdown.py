"""Markdown as lines that fit a width; of a growing text, only the last block is laid out again."""

from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING

from app.render.lines import EMPTY, Line, Run, folded, padded, width_of, wrapped
from app.sanitize import visible

if TYPE_CHECKING:  # with the first reply that is shown
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode

_MIN_WIDTH = 8
_MAX_DEPTH = 12
"""Nested blocks beyond this are shown without further indentation."""
_BULLETS = ("•", "◦", "▪")

_INLINE_STYLES = {"strong": "strong", "em": "emphasis", "s": "struck", "link": "link"}
MAX_HIGHLIGHTED_CHARS = 20_000
"""Longer code is shown plain: lexers take about 1 ms for 1,000 characters."""
_CODE_STYLES = {
    "Comment": "code-comment",
    "Keyword": "code-keyword",
    "Literal.String": "code-string",
    "Literal.Number": "code-number",
    "Name.Function": "code-name",
    "Name.Class": "code-name",
    "Name.Decorator": "code-name",
    "Name.Tag": "code-keyword",
    "Name.Attribute": "code-name",
    "Name.Builtin": "code-builtin",
    "Operator.Word": "code-keyword",
    "Generic.Deleted": "refuted",
    "Generic.Inserted": "accepted",
    "Generic.Heading": "strong",
}
_GAP = " │ "
_MIN_COLUMN = 4
Cell = list[Line]


@cache
def _parser() -> "MarkdownIt":
    """The parser of all replies.

    Raw HTML is shown as text. So are link definitions: they would vanish from the reply, and a link
    above them would change when they come.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False})
    return parser.enable(["table", "strikethrough"]).disable("reference")


def parse(source: str) -> "list[SyntaxTreeNode]":
    """The top-level blocks of a text; raw HTML is text like any other."""
    return list(_tree(visible(source)).children)


def _tree(source: str) -> "SyntaxTreeNode":
    from markdown_it.tree import SyntaxTreeNode

    return SyntaxTreeNode(_parser().parse(source))


def code_blocks(source: str) -> list[str]:
    """The contents of all code blocks in a text, nested ones too, in their order."""
    return [node.content for node in _tree(source).walk() if node.type in ("fence", "code_block")]


class MarkdownDocument:
    """The lines of a text at a width.

    Only the last top-level block can change while text is appended, so the parse starts there.
    """

    def __init__(self, source: str = "") -> None:
        self.source = source
        self._width = 0
        self._done: list[Line] = []
        self._tail_start = 0
        self._tail: list[Line] | None = None

    def append(self, text: str) -> None:
        """Add text at the end."""
        self.source += text
        self._tail = None

    def replace(self, source: str) -> None:
        """Start again with another text."""
        self.source = source
        self._forget()

    def lines(self, width: int) -> list[Line]:
        """Every line of the text at a width."""
        if width != self._width:
            self._width = width
            self._forget()
        if self._tail is None:
            self._tail = self._lay_out_tail()
        return self._done + self._tail if self._tail else self._done

    def _forget(self) -> None:
        self._done = []
        self._tail_start = 0
        self._tail = None

    def _lay_out_tail(self) -> list[Line]:
        source = self.source[self._tail_start :]
        blocks = parse(source)
        if not blocks:
            return []
        *finished, last = blocks
        rows = source.split("\n")
        for block in finished:
            self._done += self._spaced(self._block_lines(block, rows))
        if finished and last.map is not None:
            self._tail_start += sum(len(row) + 1 for row in rows[: last.map[0]])
        return self._spaced(self._block_lines(last, rows))

    def _block_lines(self, block: "SyntaxTreeNode", rows: list[str]) -> list[Line]:
        lines = block_lines(block, self._width)
        if any(run.text.strip(" ▎") for line in lines for run in line) or block.map is None:
            return lines
        # The parser drops what is nested deeper than its limit; as plain text it is still there.
        source = visible("\n".join(rows[block.map[0] : block.map[1]]))
        return [part for row in source.split("\n") for part in wrapped((Run(row),), self._width)]

    def _spaced(self, lines: list[Line]) -> list[Line]:
        return [EMPTY, *lines] if self._done and lines else lines


def block_lines(node: "SyntaxTreeNode", width: int, depth: int = 0) -> list[Line]:
    """The lines of one block and everything in it."""
    width = max(width, _MIN_WIDTH)
    match node.type:
        case "paragraph":
            return _text(node, width)
        case "heading":
            return _text(node, width, "heading" if node.tag in ("h1", "h2") else "heading-minor")
        case "fence":
            return _code(node.content, node.info.split()[0] if node.info.strip() else "", width)
        case "code_block":
            return _code(node.content, "", width)
        case "bullet_list" | "ordered_list":
            return _list(node, width, depth)
        case "blockquote":
            inner = children_lines(node, width - 2, depth + 1)
            return [(Run("▎ ", "quote-bar"), *_quoted(runs)) for runs in inner]
        case "table":
            return table_lines(node, width)
        case "hr":
            return [(Run("─" * width, "rule"),)]
        case _:
            return [
                part for text in node.content.split("\n") for part in wrapped((Run(text),), width)
            ]


def children_lines(
    node: "SyntaxTreeNode", width: int, depth: int, *, tight: bool = False
) -> list[Line]:
    """The lines of all blocks inside a node, an empty line between them unless `tight`."""
    lines: list[Line] = []
    for child in node.children:
        if lines and not tight:
            lines.append(EMPTY)
        lines += block_lines(child, width, depth)
    return lines


def _text(node: "SyntaxTreeNode", width: int, style: str = "") -> list[Line]:
    return [
        part
        for child in node.children
        for runs in inline_lines(child, style)
        for part in wrapped(runs, width)
    ]


def _code(content: str, language: str, width: int) -> list[Line]:
    inner = width - 2
    lines = [
        padded((Run(" ", "code"), *part), width, "code")
        for runs in code_lines(content.rstrip("\n"), language)
        for part in folded(runs, inner)
    ]
    label = f" {language} "[: max(inner, 0)] if language else ""
    return [padded((Run(label, "code-label"),), width, "code"), *lines] if label else lines


def _list(node: "SyntaxTreeNode", width: int, depth: int) -> list[Line]:
    lines: list[Line] = []
    tight = all(child.hidden for item in node.children for child in item.children[:1])
    start = node.attrs.get("start", 1)
    first = int(start) if isinstance(start, int | float | str) else 1
    ordered = node.type == "ordered_list"
    digits = len(str(first + len(node.children) - 1))
    for number, item in enumerate(node.children, first):
        marker = f"{number:>{digits}}. " if ordered else f"{_BULLETS[depth % len(_BULLETS)]} "
        indent = len(marker) if depth < _MAX_DEPTH else 0
        if lines and not tight:
            lines.append(EMPTY)
        body = children_lines(item, width - indent, depth + 1, tight=tight) or [EMPTY]
        lines.append((Run(marker[:indent], "marker"), *body[0]))
        lines += [(Run(" " * indent), *runs) if runs else EMPTY for runs in body[1:]]
    return lines


def _quoted(runs: Line) -> Line:
    return tuple(Run(run.text, run.style or "quote") for run in runs)


def inline_lines(node: "SyntaxTreeNode", style: str = "") -> list[Line]:
    """The lines of an inline node, cut at its line breaks and not yet wrapped.

    A soft break becomes a line break: models write verses and addresses with single newlines.
    """
    return _rows(_runs(node, style))


def _rows(runs: Iterable[Run]) -> list[Line]:
    """Lines out of runs that hold line breaks; each line without empty runs."""
    lines: list[list[Run]] = [[]]
    for run in runs:
        head, *rest = run.text.split("\n")
        lines[-1].append(Run(head, run.style))
        lines += [[Run(text, run.style)] for text in rest]
    return [tuple(run for run in line if run.text) for line in lines]


def _runs(node: "SyntaxTreeNode", style: str) -> Iterator[Run]:
    for child in node.children:
        match child.type:
            case "text" | "html_inline":
                yield Run(child.content, style)
            case "code_inline":
                yield Run(child.content, f"{style} code-inline".strip())
            case "softbreak" | "hardbreak":
                yield Run("\n", style)
            case "image":
                yield Run(f"[{child.content or 'image'}]", f"{style} muted".strip())
                yield from _target(str(child.attrs.get("src", "")), child.content)
            case _:
                own = _INLINE_STYLES.get(child.type, "")
                yield from _runs(child, f"{style} {own}".strip())
                if child.type == "link":
                    yield from _target(str(child.attrs.get("href", "")), _text_of(child))


def _target(address: str, label: str) -> Iterator[Run]:
    """The address of a link, shown because a label may hide where it leads."""
    if address and address not in (label, f"mailto:{label}"):
        yield Run(f" ({address})", "muted")


def _text_of(node: "SyntaxTreeNode") -> str:
    return "".join(child.content for child in node.walk() if child.type in ("text", "code_inline"))


def code_lines(code: str, language: str) -> list[Line]:
    """The lines of a piece of code, not yet folded."""
    if not language or len(code) > MAX_HIGHLIGHTED_CHARS:
        return [(Run(text, "code"),) for text in code.split("\n")]
    # Imported here: Pygments takes 20 ms, and many chats never show code.
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return code_lines(code, "")
    tokens = lexer.get_tokens(code)
    return _rows(Run(value, _style_of(str(token_type))) for token_type, value in tokens)


@lru_cache(maxsize=512)
def _style_of(token_type: str) -> str:
    """The style of a Pygments token type such as `Token.Literal.String.Double`."""
    parts = token_type.split(".")[1:]
    while parts:
        if style := _CODE_STYLES.get(".".join(parts)):
            return f"code {style}"
        parts.pop()
    return "code"


def table_lines(node: "SyntaxTreeNode", width: int) -> list[Line]:
    """The rows of a table; columns shrink and their cells wrap where it is too wide."""
    rows = [[_cell(cell) for cell in row.children] for row in node.walk() if row.type == "tr"]
    n_columns = max((len(row) for row in rows), default=0)
    if n_columns == 0:
        return []
    natural = [
        max(max((width_of(line) for line in row[i]), default=0) for row in rows)
        for i in range(n_columns)
    ]
    widths = column_widths(natural, width - len(_GAP) * (n_columns - 1))
    rule = Run("─┼─".join("─" * w for w in widths), "rule")
    lines = _row_lines(rows[0], widths)
    lines.append((rule,))
    for row in rows[1:]:
        lines += _row_lines(row, widths)
    return lines


def column_widths(natural: list[int], n_cells: int) -> list[int]:
    """Widths that sum to at most `n_cells` if possible; the widest columns shrink first."""
    widths = [min(max(width, 1), n_cells) for width in natural]
    floor = max(1, min(_MIN_COLUMN, n_cells // len(widths)))
    while sum(widths) > n_cells and max(widths) > floor:
        widths[widths.index(max(widths))] -= 1
    return widths


def _cell(node: "SyntaxTreeNode") -> Cell:
    style = "strong" if node.type == "th" else ""
    return [line for child in node.children for line in inline_lines(child, style)] or [EMPTY]


def _row_lines(row: list[Cell], widths: list[int]) -> list[Line]:
    columns = [
        [part for line in cell for part in wrapped(line, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    lines = []
    for cells in zip_longest(*columns, fillvalue=EMPTY):
        runs: list[Run] = []
        for cell, width in zip(cells, widths, strict=True):
            runs += [Run(_GAP, "rule")] if runs else []
            runs += padded(cell, width)
        lines.append(tuple(runs))
    return lines
