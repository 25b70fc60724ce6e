"""The messages of a chat in one scrolling widget; the last one grows while it streams.

One widget and no child: Textual lays out every mounted widget again whenever one of them grows, so
a widget per message or per Markdown block costs more than a small model's decoding.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import Reactive, reactive
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip

from app.bindings import MESSAGE_KEYS, with_keys
from app.chat.entries import Entry, Speaker
from app.chat.spans import TokenSpan
from app.format import counted
from app.render.lines import Line, Run, plain
from app.render.transcript import GUTTER, EntryLines, TintMode, gutter
from app.widgets.ink import Ink, highlighted

AGAIN = (
    "{reply-regenerate} regenerate · {composer-complete}, then {message-edit} edit, "
    "{message-edit-reply} edit reply, {message-fork} fork, {message-copy} copy"
)
"""Follows the last reply: no other place shows these keys."""
WINDOW = 20
"""Messages that are laid out when a chat is opened, and how many more at a time."""


class Transcript(ScrollView, Ink, can_focus=True):
    """Shows entries, follows the end while it is in sight, and lets one message be selected."""

    BINDINGS: ClassVar[list[BindingType]] = MESSAGE_KEYS

    # A change of the size of the text needs no layout: nothing else moves.
    virtual_size: Reactive[Size] = Reactive(Size(0, 0), layout=False)

    selected: reactive[int | None] = reactive(None, layout=False)
    """Key of the message that actions apply to; None is the last one."""

    @dataclass
    class Clicked(Message):
        """A message was clicked."""

        key: int

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._all: list[Entry] = []
        self._shown: list[EntryLines] = []
        self._opened: set[int] = set()
        """Replies whose thinking is shown."""
        self._tops: list[int] = []
        """First line of each shown entry."""
        self._lines: list[Line] = []
        self._strips: dict[int, Strip] = {}
        """Content of each line, painted."""
        self._outer: dict[tuple[int, str, bool], Strip] = {}
        """Cached lines with their frame, by line, edge and focus."""
        self._thumb = (0, 0)
        self._laid_width = 0
        """For which the lines were wrapped last."""
        self._n_window = WINDOW
        self.tint: TintMode = "off"
        """How the tokens of replies are coloured; `set_tint` changes it."""
        self._marked_text = ""
        """Lower-case text that is highlighted in all messages."""
        self._invitation = ""
        self._goal: tuple[int, str] | None = None
        """The message to jump to, and a text in it, as soon as the transcript is in sight."""
        self.is_following = True
        """New text scrolls into sight; ends when the user scrolls up."""

    # --- what it shows ---

    def show(self, entries: list[Entry]) -> None:
        """Show these entries; those that are shown already keep their layout."""
        if entries[:1] != self._all[:1]:
            self._n_window = WINDOW
        self.is_following = self.is_following or not entries
        self._all = entries
        known = {shown.entry.key: shown for shown in self._shown}
        first = max(len(entries) - self._n_window, 0)
        self._shown = [self._updated(known.get(e.key), e) for e in entries[first:]]
        last = self._last_message()
        for each in self._shown:
            entry = each.entry
            can_answer = each is last and entry.speaker is Speaker.MODEL and not entry.is_live
            each.set_hint(self._named(AGAIN) if can_answer else "")
        if self.selected not in {entry.key for entry in entries}:
            self.selected = None
            if self.has_focus:
                self.on_focus()
        if self._text_width <= 0:
            self._tops, self._lines = [], []  # of the entries before
            self.forget_strips()
        self._lay_out_from(0)

    def _last_message(self) -> EntryLines | None:
        messages = (Speaker.USER, Speaker.MODEL)
        return next((s for s in reversed(self._shown) if s.entry.speaker in messages), None)

    def on_focus(self) -> None:
        """Show which message the keys apply to if none was selected."""
        last = self._last_message()
        if self.selected is None and last is not None:
            self.selected = last.entry.key

    def append(self, text: str, spans: Sequence[TokenSpan] = ()) -> None:
        """Add text to the live entry, with its spans by origin."""
        if self._shown and self._shown[-1].entry.is_live:
            self._shown[-1].append(text, spans)
            self._lay_out_from(len(self._shown) - 1)

    def set_progress(self, text: str) -> None:
        last = self._shown[-1] if self._shown else None
        if last is not None and last.entry.is_live and last.has_thinking:
            last.set_progress(text)
            self._lay_out_from(len(self._shown) - 1)

    def action_thinking(self) -> None:
        """Show or fold the thinking of the selected reply, or of the last that thought."""
        thought = [shown for shown in self._shown if shown.has_thinking]
        chosen = next((shown for shown in thought if shown.entry.key == self.selected), None)
        if chosen is None and not thought:
            self.app.notify("No reply in this chat contains thinking.")
            return
        chosen = chosen or thought[-1]
        self._opened ^= {chosen.entry.key}
        chosen.set_open(is_open=chosen.entry.key in self._opened)
        self._lay_out_from(self._shown.index(chosen))

    def set_tint(self, tint: TintMode) -> None:
        self.tint = tint
        for shown in self._shown:
            shown.set_tint(tint)
        self.forget_strips()
        self._lay_out_from(0)

    def set_invitation(self, text: str) -> None:
        if text != self._invitation:
            self._invitation = text
            self._lay_out_from(0)

    @property
    def has_messages(self) -> bool:
        return any(entry.speaker in (Speaker.USER, Speaker.MODEL) for entry in self._all)

    @property
    def n_hidden(self) -> int:
        return len(self._all) - len(self._shown)

    @property
    def text(self) -> str:
        return "\n".join(plain(line) for line in self._lines)

    def _updated(self, known: EntryLines | None, entry: Entry) -> EntryLines:
        if known is None:
            known = EntryLines(entry, self.tint, self._named)
            known.set_open(is_open=entry.key in self._opened)
            return known
        known.update(entry)
        return known

    # --- layout ---

    @property
    def _text_width(self) -> int:
        return self.size.width - GUTTER - 1

    @property
    def _is_laid_out(self) -> bool:
        """Whether each shown entry has its lines; not before there is a width for them."""
        return self._text_width > 0 and len(self._tops) == len(self._shown)

    def _lay_out_from(self, first: int) -> None:
        """Lay out the entries from the given one on, and keep the view where it was."""
        if self._text_width <= 0:  # another tab is shown: `on_resize` does it then
            return
        if first >= len(self._tops):
            first = 0
        lines = self._lines[: self._tops[first]] if first else self._heading()
        del self._tops[first:]
        for shown in self._shown[first:]:
            self._tops.append(len(lines))
            lines += shown.lines(self._text_width)
        unchanged = _n_equal(self._lines, lines)
        n_old, self._lines = len(self._lines), lines
        self._forget_strips(unchanged, max(n_old, len(lines)))
        self.virtual_size = Size(self.size.width, len(lines))
        if self.is_following:
            self.scroll_end(animate=False, immediate=True, x_axis=False)
        elif len(lines) > n_old:
            self.set_frame(hint=self._named("more below: {transcript-end} goes to the end"))
        self._move_thumb()
        top, size = max(unchanged - self.scroll_offset.y, 0), self.size
        if top < size.height:
            self.refresh(Region(0, top, size.width, size.height - top))

    def _forget_strips(self, start: int, end: int) -> None:
        for y in range(start, end):
            self._strips.pop(y, None)
        oldest = self.scroll_offset.y - self.size.height
        self._outer = {k: strip for k, strip in self._outer.items() if oldest <= k[0] < start}

    def forget_strips(self) -> None:
        self._strips, self._outer = {}, {}

    def _heading(self) -> list[Line]:
        if not self._all and self._invitation:
            return [(Run(line, "note"),) for line in self._invitation.split("\n")]
        if not self.n_hidden:
            return []
        how = self._named("{composer-complete}, then {transcript-earlier} shows earlier messages")
        hidden = counted(self.n_hidden, "message")
        return [(Run(f"{hidden} above not shown: {how}", "note"),), ()]

    def _named(self, hint: str) -> str:
        return with_keys(hint, self.app)

    def on_resize(self) -> None:
        anchor = self._index_of(self.scroll_offset.y)
        self.forget_strips()
        self._lay_out_from(0)
        has_new_width, self._laid_width = self.size.width != self._laid_width, self.size.width
        if has_new_width and not self.is_following and 0 <= anchor < len(self._tops):
            self.scroll_to(y=self._tops[anchor], animate=False)
        if self._goal is not None and self._is_laid_out:
            self.jump_to(*self._goal)

    # --- painting ---

    def render_line(self, y: int) -> Strip:
        # Textual looks for the place of a selection in this strip.
        return super().render_line(y).apply_offsets(0, y + self.scroll_offset.y)

    def content_strip(self, y: int, width: int) -> Strip:
        y += self.scroll_offset.y
        if y >= len(self._lines):
            return self.strip((), width)
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._paint(y, width)
        return self._with_selection(strip, y)

    def edge(self, y: int) -> str:
        return "┃" if self._thumb[0] <= y < self._thumb[1] else "│"

    def _outer_strip(self, y: int) -> Strip:
        key = (y + self.scroll_offset.y, self.edge(y - 1), self.has_focus)
        if self.text_selection is not None or not 0 < y < self.outer_size.height - 1:
            return super()._outer_strip(y)
        if key not in self._outer:
            self._outer[key] = super()._outer_strip(y)
        return self._outer[key]

    def _move_thumb(self) -> None:
        """Move the bold part of the frame, which shows the visible part of the chat."""
        height, n_lines = self.size.height, len(self._lines)
        if not height or n_lines <= height:
            self._thumb = (0, 0)
            return
        length = max(height * height // n_lines, 1)
        top = round(self.scroll_offset.y / (n_lines - height) * (height - length))
        self._thumb = (top, top + length)

    def _paint(self, y: int, width: int) -> Strip:
        index = self._index_of(y)
        prefix: Line = (Run(" " * GUTTER),)
        if index >= 0:
            entry = self._shown[index].entry
            is_selected = entry.key == self.selected
            prefix = gutter(entry, is_first=y == self._tops[index], is_selected=is_selected)
        strip = self.strip((*prefix, *self._lines[y]), width)
        text = plain(self._lines[y]).lower() if self._marked_text else ""
        return self._with_marks(strip, text) if self._marked_text in text and text else strip

    def _with_selection(self, strip: Strip, y: int) -> Strip:
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is None:
            return strip
        start, end = span
        highlight = self.screen.get_component_rich_style("screen--selection")
        return highlighted(strip, start, end, highlight)

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002  a hook of Textual
        self.refresh()

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        lines = [f"{' ' * GUTTER}{plain(line)}" for line in self._lines]
        text = selection.extract("\n".join(lines))
        cut = "\n".join(line.removeprefix(" " * GUTTER).rstrip() for line in text.split("\n"))
        return cut, "\n"

    @property
    def allow_select(self) -> bool:
        return True

    # --- moving ---

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.is_following = self.is_vertical_scroll_end
        self._move_thumb()
        if self.is_following:
            self.set_frame(hint="")

    def watch_selected(self) -> None:
        self.forget_strips()
        self.refresh()

    def action_select(self, step: int) -> None:
        own = (Speaker.NOTE, Speaker.DIVIDER)
        keys = [shown.entry.key for shown in self._shown if shown.entry.speaker not in own]
        if not keys:
            return
        index = keys.index(self.selected) + step if self.selected in keys else len(keys) - 1
        self.selected = keys[min(max(index, 0), len(keys) - 1)]
        shown = next(i for i, s in enumerate(self._shown) if s.entry.key == self.selected)
        if not self._is_laid_out:
            self._goal = (self.selected, "")
            return
        top = self._tops[shown]
        if not 0 <= top - self.scroll_offset.y < self.size.height - 2:
            self.scroll_to(y=max(top - 1, 0), animate=False)

    def jump_to(self, key: int, found: str = "", index: int = 0) -> bool:
        """Select a message and scroll to it; False if it is not one of those shown.

        It scrolls to one of the lines with the text `found`, by its index. A transcript that is not
        in sight does so later.
        """
        at = next((i for i, entry in enumerate(self._all) if entry.key == key), None)
        if at is None:
            return False
        self.is_following = False
        if at < self.n_hidden:
            self._n_window = len(self._all) - at + WINDOW // 2
            self.forget_strips()
            self.show(self._all)
        self.selected = key
        self._goal = None if self._is_laid_out else (key, found)
        if self._goal is None:
            lines = self.lines_with(key, found)
            line = lines[index] if lines else self._tops[at - self.n_hidden]
            self.scroll_to(y=max(line - 2, 0), animate=False)
        return True

    # --- finding ---

    def keys_with(self, text: str) -> list[int]:
        """The messages with a text in any case, oldest first."""
        wanted = text.lower()
        return [e.key for e in self._all if wanted and wanted in e.content.lower()]

    def lines_with(self, key: int, text: str) -> list[int]:
        """The lines of a message that hold a text; none if it is not laid out."""
        shown = next((i for i, s in enumerate(self._shown) if s.entry.key == key), None)
        wanted = text.lower()
        if shown is None or shown >= len(self._tops) or not wanted:
            return []
        end = self._tops[shown + 1] if shown + 1 < len(self._tops) else len(self._lines)
        lines = range(self._tops[shown], end)
        return [y for y in lines if wanted in plain(self._lines[y]).lower()]

    def mark_text(self, text: str) -> None:
        """Mark each occurrence of a text; an empty one marks nothing."""
        if text.lower() != self._marked_text:
            self._marked_text = text.lower()
            self.forget_strips()
            self.refresh()

    def _with_marks(self, strip: Strip, text: str) -> Strip:
        style = self.ink("found")
        at = text.find(self._marked_text)
        while at >= 0:
            end = at + len(self._marked_text)
            strip = highlighted(strip, at + GUTTER, end + GUTTER, style)
            at = text.find(self._marked_text, end)
        return strip

    def action_load_earlier(self) -> None:
        if not self.n_hidden:
            self.scroll_home(animate=False)
            return
        n_lines = len(self._lines)
        self.is_following = False
        y = self.scroll_offset.y
        self._n_window += WINDOW
        self.forget_strips()
        self.show(self._all)
        self.scroll_to(y=y + len(self._lines) - n_lines, animate=False)

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self.is_following = True
        self.scroll_end(animate=False, immediate=True, x_axis=False)

    def on_click(self, event: events.Click) -> None:
        y = event.y - self.content_offset.y + self.scroll_offset.y
        if y < len(self._heading()):
            self.action_load_earlier()
            return
        index = self._index_of(y)
        if index >= 0 and y < len(self._lines):
            self.post_message(self.Clicked(self._shown[index].entry.key))

    def _index_of(self, y: int) -> int:
        """Which shown entry the line belongs to; -1 above the first."""
        return bisect_right(self._tops, y) - 1


def _n_equal(old: list[Line], new: list[Line]) -> int:
    for i, (a, b) in enumerate(zip(old, new, strict=False)):
        if a is not b and a != b:
            return i
    return min(len(old), len(new))
