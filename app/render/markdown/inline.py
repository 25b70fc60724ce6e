"""Inline Markdown (emphasis, code, links) as runs of text."""

from collections.abc import Iterator

from markdown_it.tree import SyntaxTreeNode

from app.render.lines import Line, Run

_STYLES = {"strong": "strong", "em": "emphasis", "s": "struck", "link": "link"}


def inline_lines(node: SyntaxTreeNode, style: str = "") -> list[Line]:
    """The lines of an inline node, cut at its line breaks and not yet wrapped.

    A soft break is kept as a line break: models write verses and addresses with single newlines.
    """
    lines: list[list[Run]] = [[]]
    for run in _runs(node, style):
        head, *rest = run.text.split("\n")
        lines[-1].append(Run(head, run.style))
        lines += [[Run(text, run.style)] for text in rest]
    return [tuple(run for run in runs if run.text) for runs in lines]


def _runs(node: SyntaxTreeNode, style: str) -> Iterator[Run]:
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
                own = _STYLES.get(child.type, "")
                yield from _runs(child, f"{style} {own}".strip())
                if child.type == "link":
                    yield from _target(str(child.attrs.get("href", "")), _text_of(child))


def _target(address: str, label: str) -> Iterator[Run]:
    """The address behind a link: shown, because a label may hide where it leads."""
    if address and address not in (label, f"mailto:{label}"):
        yield Run(f" ({address})", "muted")


def _text_of(node: SyntaxTreeNode) -> str:
    return "".join(child.content for child in node.walk() if child.type in ("text", "code_inline"))
