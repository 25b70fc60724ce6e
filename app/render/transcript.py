"""Messages as lines, with tokens coloured by their predictor or verdict."""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

from app import format as fmt
from app.chat.attachments import Attachment, attached_to
from app.chat.entries import Entry, Speaker
from app.chat.spans import TokenSpan
from app.render.lines import EMPTY, Line, Run, clipped, plain, width_of, wrapped
from app.render.markdown import MarkdownDocument
from app.sanitize import visible
from engine.events import TokenKind
from engine.generation.reasoning import Thought

TintMode = Literal["off", "source", "verdict"]
TINT_MODES: tuple[TintMode, ...] = get_args(TintMode)
TINT_MEANINGS: dict[TintMode, str] = {
    "off": "off; replies are shown as Markdown",
    "source": "by predictor; replies are shown as plain text",
    "verdict": "accepted or rejected; replies are shown as plain text",
}

SOURCE_STYLES = ("source-lookup", "source-suffix", "source-draft", "source-other")

_KINDS = {
    TokenKind.DRAFT: ("kind-draft", "accepted draft"),
    TokenKind.BONUS: ("kind-bonus", "bonus"),
    TokenKind.CORRECTION: ("kind-correction", "correction"),
    TokenKind.PLAIN: ("kind-plain", "no draft"),
}

GUTTER = 8
"""Cells left of the text, for selection and speaker."""
MAX_WIDTH = 110
"""Longer lines are hard to read, so the text is not wider than this."""
MAX_REPLY_CHARS = 100_000
"""Characters at the end of a reply that are laid out, about 25,000 tokens."""
MAX_QUESTION_LINES = 200
"""Lines of a pasted question that are shown; all lines are sent and saved."""
_SPEAKERS = {
    Speaker.USER: "you",
    Speaker.MODEL: "model",
    Speaker.NOTE: "note",
    Speaker.DIVIDER: "",
}
FOLDED = ("▾", "▸")
"""Before the thinking of a reply: open, folded."""
MARKER_CHARS = 64
"""Characters after which it is known whether a reply begins with thinking."""
UNSEEN = "the model no longer sees the messages above"
SUMMARISED = "the model sees this summary instead of the messages above"


def source_style(source: str) -> str:
    """The style of a predictor; custom predictors share one."""
    style = f"source-{source}"
    return style if style in SOURCE_STYLES else "source-other"


def span_style(span: TokenSpan, mode: TintMode) -> str:
    """The style of a span; by source, only accepted drafts have a colour."""
    match mode:
        case "source":
            is_drafted = span.kind is TokenKind.DRAFT and span.source is not None
            return source_style(span.source or "") if is_drafted else ""
        case "verdict":
            return _KINDS[span.kind][0] if span.kind is not None else ""
        case "off":
            return ""


def _legend_entry(span: TokenSpan, mode: TintMode) -> tuple[str, str]:
    """Name and style of a span's colour in the legend."""
    kind = _KINDS[span.kind][1] if span.kind is not None else ""
    return (span.source or "" if mode == "source" else kind), span_style(span, mode)


class TintedText:
    """Coloured text that is wrapped; an append wraps only the last row again."""

    def __init__(self, mode: TintMode, spans: Iterable[TokenSpan] = ()) -> None:
        self.mode: TintMode = mode
        self.spans: list[TokenSpan] = []
        self._rows: list[list[Run]] = [[]]
        """The rows before wrapping."""
        self._width = 0
        self._lines: list[Line] = []
        self._named: dict[tuple[str, str], None] = {}
        """Names and styles in the text, in their order."""
        self._n_wrapped = 0
        """Rows in `_lines`, never the last row."""
        self.append(spans)

    def append(self, spans: Iterable[TokenSpan]) -> None:
        """Add spans at the end."""
        for span in spans:
            self.spans.append(span)
            name, style = _legend_entry(span, self.mode)
            if style:
                self._named[name, style] = None
            for i, part in enumerate(visible(span.text).split("\n")):
                if i:
                    self._rows.append([])
                if part:
                    _add(self._rows[-1], Run(part, style))

    @property
    def legend(self) -> Line:
        """The meaning of the colours in the text."""
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


class EntryLines:
    """The lines of one entry; an append to a reply lays out only its last block again.

    With a tint, a reply with known tokens is plain text, since Markdown would hide tokens.
    """

    def __init__(
        self, entry: Entry, tint: TintMode = "off", named: Callable[[str], str] = str
    ) -> None:
        """Lay out an entry; `named` replaces the ids of keys in hints by the keys."""
        self.entry = entry
        self._named = named
        self.hint = ""
        self._tint: TintMode = tint
        self._spans = list(entry.spans)
        self._tinted = self._tinted_text()
        self._content = entry.content
        self._thought: Thought | None = None
        self._is_open = False
        self._progress = ""
        self._document = MarkdownDocument("") if entry.speaker is Speaker.MODEL else None
        self._n_above = 0
        """Characters at the start of a long reply that are not laid out."""
        self._read()
        self._width = 0
        self._lines: list[Line] | None = None

    def update(self, entry: Entry) -> None:
        """Show another state of the same entry."""
        if entry == self.entry:
            return
        if entry.content != self._content or self.entry.is_live:
            self._content = entry.content
            self._read()
        self.entry = entry
        self._spans = list(entry.spans)
        self._tinted = self._tinted_text()
        self._lines = None

    def append(self, text: str, spans: Iterable[TokenSpan] = ()) -> None:
        """Add text to a streaming reply, and the same text as spans."""
        if self._document is None:
            return
        self._content += text
        is_decided = self._thought.is_over if self._thought else len(self._content) > MARKER_CHARS
        if is_decided:
            self._document.append(text)
            if len(self._document.source) > 2 * MAX_REPLY_CHARS:
                self._show_end(self._document.source)
        else:
            self._read()
        added = list(spans)
        self._spans += added
        if self._tinted is not None:
            self._tinted.append(added)
        else:
            self._tinted = self._tinted_text()
        self._lines = None

    def _read(self) -> None:
        """Separate the thinking of a reply from its answer."""
        if self._document is not None:
            self._thought = Thought.of(self._content)
            self._n_above = 0
            self._show_end(self._thought.answer if self._thought else self._content)

    def _show_end(self, text: str) -> None:
        """Lay out a text, or only the last lines of a very long one."""
        start = max(0, len(text) - MAX_REPLY_CHARS)
        if start:
            newline = text.find("\n", start, start + MAX_REPLY_CHARS // 2)
            start = start if newline < 0 else newline + 1
        self._n_above += start
        if self._document is not None:
            self._document.replace(text[start:])

    def set_open(self, *, is_open: bool) -> None:
        """Show the thinking of a reply, or fold it."""
        if is_open is not self._is_open:
            self._is_open, self._lines = is_open, None

    def set_progress(self, text: str) -> None:
        """Show the progress of the thinking in a streaming reply."""
        if text != self._progress:
            self._progress, self._lines = text, None

    @property
    def has_thinking(self) -> bool:
        """Whether the reply has thinking."""
        return self._thought is not None

    def set_hint(self, hint: str) -> None:
        """The keys that apply to it."""
        if hint != self.hint:
            self.hint = hint
            self._lines = None

    def set_tint(self, tint: TintMode) -> None:
        """Colour the tokens in another way."""
        self._tint = tint
        self._tinted = self._tinted_text()
        self._lines = None

    def _tinted_text(self) -> TintedText | None:
        is_known = self._tint != "off" and bool(self._spans)
        return TintedText(self._tint, self._spans) if is_known else None

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
            lines = self._document.lines(width)
            if self._n_above:
                lines = [clipped((Run(_above(self._n_above), "note"),), width), EMPTY, *lines]
            if self._thought is not None:
                return [*self._thinking(self._thought, width), *lines]
            return lines or [(Run("…", "muted"),)]
        if self.entry.speaker is Speaker.DIVIDER:
            return divider_lines(self.entry.content, self._named("{message-see-all}: undo"), width)
        if self.entry.speaker is Speaker.NOTE:
            return question_lines(self._named(self.entry.content), width, "aside")
        text, files = attached_to(self.entry.content)
        return [*question_lines(text, width), *(_file_line(file, width) for file in files)]

    def _thinking(self, thought: Thought, width: int) -> list[Line]:
        """A line with the time of the thinking, and its text, or its end while it runs."""
        what = (
            self.entry.thinking or self._progress or ("thought" if thought.is_over else "thinking")
        )
        mark = FOLDED[0] if self._is_open else FOLDED[1]
        opens = "{composer-complete}, then {message-thinking} shows the thinking"
        key = self._named("{message-thinking} hides the thinking" if self._is_open else opens)
        head = clipped((Run(f"{mark} {what}", "note"), Run(f" · {key}", "muted")), width)
        if self._is_open:
            return [head, *question_lines(thought.text, width, "aside"), EMPTY]
        if thought.is_over or not thought.text:
            return [head]
        return [head, *wrapped((Run(visible(thought.text[-2 * width :]), "aside"),), width)[-2:]]

    def _footer(self, width: int) -> list[Line]:
        parts = [self.entry.ending] if self.entry.ending else []
        if self.entry.n_variants > 1:
            which = f"variant {self.entry.variant} of {self.entry.n_variants}"
            parts.insert(0, f"{which} ({{reply-variant-before}}, {{reply-variant-next}})")
        ending = (Run(self._named(" · ".join(parts)), "note"),)
        keys = (Run(self.hint, "muted"),)
        whole = (*ending, Run(" · " * bool(parts and self.hint), "muted"), *keys)
        if width_of(whole) <= width:
            return [whole] if plain(whole) else []
        return [*wrapped(ending, width), *wrapped(keys, width)] if parts else wrapped(keys, width)


def _above(n_chars: int) -> str:
    chars = fmt.counted(n_chars, "character")
    return f"… {chars} above are not shown, but the model receives them"


def divider_lines(summary: str, undoes: str, width: int) -> list[Line]:
    """A rule with what the model sees of the messages above it, and their summary."""
    label = f" {SUMMARISED if summary else UNSEEN} ({undoes}) "
    left = max((width - len(label)) // 2, 2)
    right = max(width - len(label) - left, 2)
    rule = (Run("─" * left, "rule"), Run(label, "warn"), Run("─" * right, "rule"))
    lines = [clipped(rule, width)]
    if summary:
        lines += question_lines(summary, width, "aside")
    return lines


def _file_line(file: Attachment, width: int) -> Line:
    size = fmt.counted(file.text.count("\n") + 1, "line") if file.text else "empty file"
    if file.image is not None:
        size = f"image, {file.image.width} x {file.image.height}"
    name = Run(f"@{visible(file.name)}", "accent")
    return clipped((name, Run(f"  {size} attached", "note")), width)


def question_lines(text: str, width: int, style: str = "") -> list[Line]:
    """Literal text, wrapped; a very long text is cut, and the last line counts the rest."""
    lines: list[Line] = []
    for content in visible(text[: MAX_QUESTION_LINES * max(width, 1)]).split("\n"):
        lines += wrapped((Run(content, style),), width)
        if len(lines) > MAX_QUESTION_LINES:
            break
    if len(lines) <= MAX_QUESTION_LINES and len(text) <= MAX_QUESTION_LINES * max(width, 1):
        return lines
    lines = lines[:MAX_QUESTION_LINES]
    left = len(text) - sum(len(run.text) for line in lines for run in line) - len(lines)
    note = (
        f"… {fmt.count(left)} more {fmt.plural(left, 'character')} not shown (all were sent and "
        "saved)"
    )
    return [*lines, (Run(note, "note"),)]


def gutter(entry: Entry, *, is_first: bool, is_selected: bool) -> Line:
    """The cells left of a line: the selection, and the speaker on the first line."""
    marker = Run("▌", "selected") if is_selected else Run(" ")
    name = _SPEAKERS[entry.speaker] if is_first else ""
    is_own = entry.speaker in (Speaker.NOTE, Speaker.DIVIDER)
    style = "aside" if is_own else _SPEAKERS[entry.speaker]
    return (marker, Run(f"{name:<{GUTTER - 1}}", style))
