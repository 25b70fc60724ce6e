"""One message as lines: its text, and below it how the reply went."""

from collections.abc import Iterable

from app.chat.entries import Entry, Speaker
from app.chat.pieces import Piece
from app.render import format as fmt
from app.render.lines import EMPTY, Line, Run, clipped, plain, width_of, wrapped
from app.render.markdown.document import MarkdownDocument
from app.render.sanitize import visible
from app.render.tint import TintedText, TintMode

GUTTER = 8
"""Cells left of the text, for the marker of the selection and the speaker."""
MAX_WIDTH = 110
"""Longer lines are hard to read, so the text is not wider than this."""
MAX_QUESTION_LINES = 200
"""Lines of a pasted question that are shown; the rest is sent and saved all the same."""

_SPEAKERS = {
    Speaker.USER: "you",
    Speaker.MODEL: "model",
    Speaker.ASIDE: "note",
    Speaker.DIVIDER: "",
}
UNSEEN = "the model no longer sees what is above"
SUMMARISED = "the model sees what is above as this summary"


class EntryLines:
    """The lines of one entry at a width; a live reply only lays out its last block again.

    With a tint a reply whose tokens are known is plain text in colours instead of Markdown, whose
    marks take tokens of their own.
    """

    def __init__(self, entry: Entry, tint: TintMode = "off") -> None:
        self.entry = entry
        self.hint = ""
        """Which keys apply to it; stands behind how the reply went."""
        self._tint: TintMode = tint
        self._pieces = list(entry.pieces)
        self._tinted = self._tinted_text()
        self._document = MarkdownDocument(entry.content) if _is_markdown(entry) else None
        self._width = 0
        self._lines: list[Line] | None = None

    def update(self, entry: Entry) -> None:
        """Show another state of the same entry."""
        if entry == self.entry:
            return
        if self._document is not None and (
            entry.content != self._document.source or self.entry.is_live
        ):
            # The whole text once at the end: an append only reads from its last block on.
            self._document.replace(entry.content)
        self.entry = entry
        self._pieces = list(entry.pieces)
        self._tinted = self._tinted_text()
        self._lines = None

    def append(self, text: str, pieces: Iterable[Piece] = ()) -> None:
        """Add text to a reply that streams, and the same by where its tokens came from."""
        if self._document is None:
            return
        self._document.append(text)
        added = list(pieces)
        self._pieces += added
        if self._tinted is not None:
            self._tinted.append(added)
        else:
            self._tinted = self._tinted_text()
        self._lines = None

    def set_hint(self, hint: str) -> None:
        """Say which keys apply to it."""
        if hint != self.hint:
            self.hint = hint
            self._lines = None

    def set_tint(self, tint: TintMode) -> None:
        """Colour the tokens in another way."""
        self._tint = tint
        self._tinted = self._tinted_text()
        self._lines = None

    def _tinted_text(self) -> TintedText | None:
        is_known = self._tint != "off" and bool(self._pieces)
        return TintedText(self._tint, self._pieces) if is_known else None

    def lines(self, width: int) -> list[Line]:
        """The lines without the gutter, an empty one at the end."""
        width = min(width, MAX_WIDTH)
        if self._lines is None or width != self._width:
            self._width = width
            self._lines = [*self._body(width), *self._footer(width), EMPTY]
        return self._lines

    def _body(self, width: int) -> list[Line]:
        if self._tinted is not None:
            colours = self._tinted.legend
            return [*self._tinted.lines(width), *(wrapped(colours, width) if colours else [])]
        if self._document is not None:
            return self._document.lines(width) or [(Run("…", "muted"),)]
        if self.entry.speaker is Speaker.DIVIDER:
            return divider_lines(self.entry.content, width)
        style = "aside" if self.entry.speaker is Speaker.ASIDE else ""
        return question_lines(self.entry.content, width, style)

    def _footer(self, width: int) -> list[Line]:
        parts = [self.entry.note] if self.entry.note else []
        if self.entry.n_variants > 1:
            which = f"variant {self.entry.variant} of {self.entry.n_variants}"
            parts.insert(0, f"{which} (tab, then [ or ])")
        said = (Run(" · ".join(parts), "note"),)
        keys = (Run(self.hint, "muted"),)
        whole = (*said, Run(" · " * bool(parts and self.hint), "muted"), *keys)
        if width_of(whole) <= width:
            return [whole] if plain(whole) else []
        return [*wrapped(said, width), *wrapped(keys, width)] if parts else wrapped(keys, width)


def divider_lines(summary: str, width: int) -> list[Line]:
    """A rule that says what the model sees of the messages above, and the summary of them."""
    label = f" {SUMMARISED if summary else UNSEEN} (u undoes) "
    left = max((width - len(label)) // 2, 2)
    right = max(width - len(label) - left, 2)
    rule = (Run("─" * left, "rule"), Run(label, "warn"), Run("─" * right, "rule"))
    lines = [clipped(rule, width)]
    if summary:
        lines += question_lines(summary, width, "aside")
    return lines


def question_lines(text: str, width: int, style: str = "") -> list[Line]:
    """Literal text, wrapped; a very long one is cut with a line that says so."""
    lines: list[Line] = []
    rows = visible(text).split("\n")
    for i, content in enumerate(rows):
        lines += wrapped((Run(content, style),), width)
        if len(lines) > MAX_QUESTION_LINES:
            left = sum(len(rest) + 1 for rest in rows[i + 1 :])
            left += sum(len(run.text) for runs in lines[MAX_QUESTION_LINES:] for run in runs)
            note = f"… {fmt.count(left)} more {fmt.plural(left, 'character')}, sent and saved"
            return [*lines[:MAX_QUESTION_LINES], (Run(note, "note"),)]
    return lines


def gutter(entry: Entry, *, is_first: bool, is_selected: bool) -> Line:
    """What stands left of a line: a bar when selected, the speaker beside the first line."""
    marker = Run("▌", "selected") if is_selected else Run(" ")
    name = _SPEAKERS[entry.speaker] if is_first else ""
    is_own = entry.speaker in (Speaker.ASIDE, Speaker.DIVIDER)
    style = "aside" if is_own else _SPEAKERS[entry.speaker]
    return (marker, Run(f"{name:<{GUTTER - 1}}", style))


def _is_markdown(entry: Entry) -> bool:
    return entry.speaker is Speaker.MODEL
