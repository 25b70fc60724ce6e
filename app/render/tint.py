"""A reply as plain text in which every token has the colour of where it came from."""

from collections.abc import Iterable
from typing import Literal, get_args

from app.chat.pieces import Piece
from app.render.lines import EMPTY, Line, Run, wrapped
from app.render.sanitize import visible
from engine.events import TokenKind

TintMode = Literal["off", "source", "verdict"]
TINT_MODES: tuple[TintMode, ...] = get_args(TintMode)
TINT_MEANINGS: dict[TintMode, str] = {
    "off": "off, replies are Markdown",
    "source": "who drafted each token, in plain text",
    "verdict": "what became of each draft, in plain text",
}

SOURCE_STYLES = ("source-lookup", "source-suffix", "source-draft", "source-other")
VERDICT_STYLES = ("kind-draft", "kind-bonus", "kind-correction", "kind-plain")
TINT_STYLES = (*SOURCE_STYLES, *VERDICT_STYLES)

_KINDS = {
    TokenKind.DRAFT: ("kind-draft", "accepted draft"),
    TokenKind.BONUS: ("kind-bonus", "bonus"),
    TokenKind.CORRECTION: ("kind-correction", "correction"),
    TokenKind.PLAIN: ("kind-plain", "no draft"),
}


def source_style(source: str) -> str:
    """Give the style of a predictor by its name; all that are not kvchat's own share one."""
    style = f"source-{source}"
    return style if style in SOURCE_STYLES else "source-other"


def piece_style(piece: Piece, mode: TintMode) -> str:
    """Give the style of a piece: by who drafted it, or by what became of the draft.

    By source only accepted drafts have a colour: what stands in the place of a refuted token is the
    model's own.
    """
    match mode:
        case "source":
            is_drafted = piece.kind is TokenKind.DRAFT and piece.source is not None
            return source_style(piece.source or "") if is_drafted else ""
        case "verdict":
            return _KINDS[piece.kind][0] if piece.kind is not None else ""
        case "off":
            return ""


def _named(piece: Piece, mode: TintMode) -> tuple[str, str]:
    style = piece_style(piece, mode)
    if mode == "source":
        return piece.source or "", style
    return (_KINDS[piece.kind][1] if piece.kind is not None else ""), style


class TintedText:
    """The lines of a text at a width; text that is appended lays out only the last row again."""

    def __init__(self, mode: TintMode, pieces: Iterable[Piece] = ()) -> None:
        self.mode: TintMode = mode
        self.pieces: list[Piece] = []
        self._rows: list[list[Run]] = [[]]
        """The rows as the model broke them, not yet wrapped."""
        self._width = 0
        self._lines: list[Line] = []
        self._named: dict[tuple[str, str], None] = {}
        """Names and styles of what is there, in the order in which they came."""
        self._n_wrapped = 0
        """Rows that `_lines` holds; the last row is never among them."""
        self.append(pieces)

    def append(self, pieces: Iterable[Piece]) -> None:
        """Add pieces at the end."""
        for piece in pieces:
            self.pieces.append(piece)
            name, style = _named(piece, self.mode)
            if style:
                self._named[name, style] = None
            for i, part in enumerate(visible(piece.text).split("\n")):
                if i:
                    self._rows.append([])
                if part:
                    _add(self._rows[-1], Run(part, style))

    @property
    def legend(self) -> Line:
        """What the colours mean that are there, each in its colour; empty where there is none."""
        runs: list[Run] = []
        for name, style in self._named:
            runs += [Run(" · ", "muted")] if runs else [Run("colours  ", "note")]
            runs.append(Run(f"▪ {name}", style))
        return tuple(runs)

    def lines(self, width: int) -> list[Line]:
        """Every line of the text at a width."""
        if width != self._width:
            self._width, self._lines, self._n_wrapped = width, [], 0
        for row in self._rows[self._n_wrapped : -1]:
            self._lines += _wrapped(row, width)
            self._n_wrapped += 1
        return [*self._lines, *_wrapped(self._rows[-1], width)]


def _add(row: list[Run], run: Run) -> None:
    if row and row[-1].style == run.style:
        row[-1] = Run(row[-1].text + run.text, run.style)
    else:
        row.append(run)


def _wrapped(row: list[Run], width: int) -> list[Line]:
    return wrapped(tuple(row), width) if row else [EMPTY]
