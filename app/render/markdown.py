"""A Markdown text that grows: finished blocks are laid out once, the last one again and again."""

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from app.render.lines import EMPTY, Line, Run, wrapped
from app.render.markdown_blocks import block_lines
from app.sanitize import visible

# Raw HTML is shown as text. So are link definitions: they would vanish from the reply, and a link
# above them would change when they come.
_PARSER = (
    MarkdownIt("commonmark", {"html": False})
    .enable(["table", "strikethrough"])
    .disable("reference")
)


def parse(source: str) -> list[SyntaxTreeNode]:
    """The top-level blocks of a text; raw HTML is text like any other."""
    return list(SyntaxTreeNode(_PARSER.parse(visible(source))).children)


def code_blocks(source: str) -> list[str]:
    """The contents of all code blocks in a text, nested ones too, in their order."""
    root = SyntaxTreeNode(_PARSER.parse(source))
    return [node.content for node in root.walk() if node.type in ("fence", "code_block")]


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
            self._tail_start += _offset_of_line(source, last.map[0])
        return self._spaced(self._block_lines(last, rows))

    def _block_lines(self, block: SyntaxTreeNode, rows: list[str]) -> list[Line]:
        lines = block_lines(block, self._width)
        if any(run.text.strip(" ▎") for line in lines for run in line) or block.map is None:
            return lines
        # The parser drops what is nested deeper than its limit; as plain text it is still there.
        source = visible("\n".join(rows[block.map[0] : block.map[1]]))
        return [part for row in source.split("\n") for part in wrapped((Run(row),), self._width)]

    def _spaced(self, lines: list[Line]) -> list[Line]:
        return [EMPTY, *lines] if self._done and lines else lines


def _offset_of_line(text: str, n_lines: int) -> int:
    offset = 0
    for _ in range(n_lines):
        offset = text.index("\n", offset) + 1
    return offset
