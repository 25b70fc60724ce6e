"""Source code as lines of coloured text."""

from functools import lru_cache

from app.render.lines import Line, Run

MAX_HIGHLIGHTED_CHARS = 20_000
"""Longer code is shown plain: lexers take about 1 ms for 1,000 characters."""

_STYLES = {
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
    lines: list[list[Run]] = [[]]
    for token_type, value in lexer.get_tokens(code):
        style = _style_of(str(token_type))
        head, *rest = value.split("\n")
        lines[-1].append(Run(head, style))
        lines += [[Run(text, style)] for text in rest]
    return [tuple(run for run in runs if run.text) for runs in lines]


@lru_cache(maxsize=512)
def _style_of(token_type: str) -> str:
    """The style of a Pygments token type such as `Token.Literal.String.Double`."""
    parts = token_type.split(".")[1:]
    while parts:
        if style := _STYLES.get(".".join(parts)):
            return f"code {style}"
        parts.pop()
    return "code"
