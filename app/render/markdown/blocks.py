"""Markdown blocks (paragraphs, lists, code, tables) as lines that fit a width."""

from markdown_it.tree import SyntaxTreeNode

from app.render.lines import EMPTY, Line, Run, folded, padded, wrapped
from app.render.markdown.code import code_lines
from app.render.markdown.inline import inline_lines
from app.render.markdown.table import table_lines

_MIN_WIDTH = 8
_MAX_DEPTH = 12
"""Nested blocks beyond this are shown without further indentation."""
_BULLETS = ("•", "◦", "▪")


def block_lines(node: SyntaxTreeNode, width: int, depth: int = 0) -> list[Line]:
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
    node: SyntaxTreeNode, width: int, depth: int, *, tight: bool = False
) -> list[Line]:
    """The lines of all blocks inside a node, an empty line between them unless `tight`."""
    lines: list[Line] = []
    for child in node.children:
        if lines and not tight:
            lines.append(EMPTY)
        lines += block_lines(child, width, depth)
    return lines


def _text(node: SyntaxTreeNode, width: int, style: str = "") -> list[Line]:
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


def _list(node: SyntaxTreeNode, width: int, depth: int) -> list[Line]:
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
