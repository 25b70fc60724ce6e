"""Notices and small dialogs: yes or no, a line of text, one row of a list, a text to read."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.dom import DOMNode
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from app import format as fmt
from app.bindings import with_keys
from app.chat.context_full import ContextFullOptions
from app.format import counted
from app.render.help import KeySection, help_lines
from app.render.lines import Run, clipped
from app.threads import call_if_open
from app.widgets.ink import LinesView
from app.widgets.select_list import Row, SelectList
from engine.errors import EngineError

Key = TypeVar("Key")
T = TypeVar("T")

MAX_SEARCH = 200
"""Characters of a pasted search."""
ContextChoice = Literal["shift", "summarise", "branch", "stop"]


def report(shown: Widget | App[Any], error: EngineError) -> None:
    """Show an error as a notice."""
    shown.notify(str(error), title=error.title, severity="error")


def in_thread(
    screen: Screen[Any],
    group: str,
    make: Callable[[], T],
    take: Callable[[T], object],
    fail: Callable[[EngineError], object] | None = None,
) -> None:
    """Run slow work in a thread; its result comes back unless the screen was closed.

    Later work of the same `group` replaces it. `take` receives the result of `make`, and `fail` its
    `EngineError`, in the thread of the app; without `fail` the error is a notice.
    """
    failed: Callable[[EngineError], object] = fail or partial(report, screen)

    def run() -> None:
        try:
            made = make()
        except EngineError as error:
            call_if_open(screen, failed, error)
        else:
            call_if_open(screen, take, made)

    screen.run_worker(run, thread=True, exclusive=True, group=group)


def ask(node: DOMNode, screen: Screen[T | None], then: Callable[[T], object]) -> None:
    """Show a screen, and use its result unless it is left without one."""

    def answered(result: T | None) -> None:
        if result is not None:
            then(result)

    node.app.push_screen(screen, answered)


def confirm(node: DOMNode, question: str, then: Callable[[], object]) -> None:
    """Ask a question, and do something if the answer is yes."""
    ask(node, AskYes(question), lambda _: then())


def ask_line(node: DOMNode, question: str, value: str, then: Callable[[str], object]) -> None:
    """Ask for a line of text, `value` at first, and use it unless it is empty or cancelled."""
    ask(node, AskLine(question, value), then)


class AskLine(ModalScreen[str | None]):
    """Asks for one line; its result is None when it is left with esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="ask-cancel", tooltip="Cancel"),
    ]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question, self._value = question, value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Input(self._value, id="line")
            yield Static("enter accepts · esc cancels", classes="hint", markup=False)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        self.dismiss(message.value.strip() or None)


class AskYes(ModalScreen[bool | None]):
    """Asks for confirmation; the result is None if the user declines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="ask-yes", tooltip="Confirm"),
        Binding("n,escape", "answer(False)", "No", id="ask-no", tooltip="Cancel"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Static("y yes · n or esc no", classes="hint", markup=False)

    def action_answer(self, is_yes: bool) -> None:
        self.dismiss(True if is_yes else None)


class Saving(ModalScreen[None]):
    """Covers everything else while the program ends."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("saving the states of the chats … (a few seconds at most)", markup=False)


class PickScreen(ModalScreen[Key | None]):
    """A list to pick one row from, which typing narrows down; its result is the row's key."""

    CSS_PATH = "../styles/planner.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "Close", id="plan-pick-close", tooltip="Close the list"),
    ]  # fmt: skip

    def __init__(
        self,
        title: str,
        rows: Sequence[Row[Key]] = (),
        *,
        note: str = "",
        noun: str = "",
        hint: str = "enter chooses · type to search · esc closes",
        mark: Key | None = None,
        tabs: Sequence[Widget] = (),
        classes: str = "",
    ) -> None:
        """A list of rows, with `tabs` above and `note` below; `mark` is the key of the marked row.

        `noun` is what a row is called; without it only results of a search are counted.
        """
        super().__init__()
        self._title = title
        self._all = rows
        self._shown: list[Row[Key]] = []
        self._note = note
        self._noun = noun
        self._hint = hint
        self._mark = mark
        self._tabs = tabs
        self._dialog_classes = classes
        self._search = ""
        self.awaits_rows = False
        """More rows come: enter without a row picks the first that matches then."""
        self._takes_next = False

    def compose(self) -> ComposeResult:
        with Vertical(classes=f"dialog -wide {self._dialog_classes}", id="plan-pick"):
            yield Static(self._title, classes="title", markup=False)
            yield from self._tabs
            yield SelectList(id="plan-rows")
            yield Static(self._note, id="plan-pick-note", classes="hint", markup=False)
            yield Static(self._hint, classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(SelectList).focus()
        if self._all:
            self._narrow(self._mark)

    def show_all(self, rows: Sequence[Row[Key]], *, note: str, mark: Key | None = None) -> None:
        """Show other rows that match what was typed; `mark` is the key to mark."""
        self._all, self._note = rows, note
        self._narrow(mark)

    @property
    def marked(self) -> Key | None:
        index = self.query_one(SelectList).index
        return self._shown[index].key if self._shown else None

    def picked(self, key: Key) -> None:
        self.dismiss(key)

    def found(self, words: Sequence[str]) -> list[Row[Key]]:
        """The rows that have all of these words in lower case."""
        return [row for row in self._all if all(word in row.words for word in words)]

    def typed_row(self, text: str) -> Row[Key] | None:  # noqa: ARG002  for lists that know more
        """A row for a typed text that no row matches; None if it means nothing."""
        return None

    def mark_row(self, key: Key) -> None:
        self.query_one(SelectList).mark(key)

    def show_note(self, note: str) -> None:
        self._note = note
        self._show_below()

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        self.picked(message.key)

    def on_select_list_missed(self) -> None:
        self._takes_next = self.awaits_rows

    def on_key(self, event: events.Key) -> None:
        if event.key == "backspace" and self._search:
            self._search = self._search[:-1]
        elif event.is_printable and event.character and (self._search or event.key != "space"):
            self._search += event.character
        else:
            return
        event.stop()
        event.prevent_default()
        self._narrow_again()

    def on_paste(self, event: events.Paste) -> None:
        event.stop()
        self._search += " ".join(event.text.split())[:MAX_SEARCH]
        self._narrow_again()

    def action_close(self) -> None:
        self.dismiss(None)

    def _narrow_again(self) -> None:
        """Show what matches, the first row marked."""
        self._takes_next = False
        self._narrow(None)
        self.query_one(SelectList).action_go(0)

    def _narrow(self, mark: Key | None) -> None:
        words = self._search.lower().split()
        self._shown = self.found(words)
        if not self._shown and (typed := self.typed_row(self._search.strip())) is not None:
            self._shown = [typed]
        self._shown = self._shown or [row for row in self._all if row.is_meant(words)]
        self.query_one(SelectList).show_rows(self._shown, mark)
        self._show_below()
        if self._takes_next and self._shown:
            self._takes_next = False
            self.picked(self._shown[0].key)

    def _show_below(self) -> None:
        parts = (f"“{self._search}”" if self._search else "", self._count(), self._note)
        self.query_one("#plan-pick-note", Static).update(" · ".join(filter(None, parts)))

    def _count(self) -> str:
        n_all = sum(bool(row.words) for row in self._all)
        n_found = sum(bool(row.words) for row in self._shown)
        whole = fmt.counted(n_all, self._noun) if self._noun else fmt.count(n_all)
        if self._search:
            return f"{n_found} of {whole}"
        return whole if self._noun and n_all else ""


class HelpScreen(ModalScreen[None]):
    """The keys of the screen below, and a glossary."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f1,q", "dismiss", "Close", id="help-close", tooltip="Close the help"),
    ]

    def __init__(self, sections: list[KeySection]) -> None:
        super().__init__()
        self._sections = sections

    def compose(self) -> ComposeResult:
        yield LinesView(
            lambda width: help_lines(self._sections, width),
            title="help",
            below=None,
            can_focus=True,
            id="help",
        )

    def on_mount(self) -> None:
        self.query_one(LinesView).set_frame(hint="esc closes, arrows and page keys scroll")


class ContextFullScreen(ModalScreen[ContextChoice]):
    """Asks what to do about a full context; the result is `stop` if the dialog is closed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose('stop')", "Stop", id="context-stop",
                tooltip="Cancel without changing the chat"),
        Binding("d", "choose('shift')", "Drop", id="context-shift",
                tooltip="Hide the oldest turns from the model"),
        Binding("s", "choose('summarise')", "Summarise", id="context-summarise",
                tooltip="Send the model a summary instead of the oldest turns"),
        Binding("n", "choose('branch')", "New chat", id="context-branch",
                tooltip="Ask the last question in a new chat"),
        Binding("j", "app.simulate_key('down')", "Down", id="context-down", show=False,
                tooltip="Go to the next choice"),
        Binding("k", "app.simulate_key('up')", "Up", id="context-up", show=False,
                tooltip="Go to the previous choice"),
    ]  # fmt: skip

    def __init__(self, why: str, choices: ContextFullOptions) -> None:
        super().__init__()
        self._why, self._choices = why, choices

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("the context is full", classes="title", markup=False)
            yield Static(f"{_sentence(self._why)}\n", markup=False)
            yield SelectList(click_picks=True, id="context-choices")
            larger = " · {model-plan} plans a larger context"
            hint = f"enter chooses{larger if self._choices.can_grow else ''}"
            yield Static(with_keys(hint, self.app), classes="hint", markup=False)

    def on_mount(self) -> None:
        for rows in self.query(SelectList):  # none where the app ends before it is composed
            undoes = with_keys("{message-see-all} undoes this", self.app)
            rows.show_rows(list(_rows(self._choices, undoes)))
            rows.focus()

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        self.action_choose(message.key)

    def action_choose(self, choice: ContextChoice) -> None:
        can_drop, can_branch = bool(self._choices.n_dropped), self._choices.can_branch
        can = {"shift": can_drop, "summarise": can_drop, "branch": can_branch, "stop": True}
        if can[choice]:
            self.dismiss(choice)
        else:
            self.app.bell()


def _rows(choices: ContextFullOptions, undoes: str) -> Iterator[Row[ContextChoice]]:
    can_drop, can_branch = bool(choices.n_dropped), choices.can_branch
    oldest = f"the oldest {counted(choices.n_dropped, 'message')}"
    dropped = f"the model no longer sees {oldest}; {undoes}"
    written = f"the model summarises {oldest}; {undoes}"
    if not can_drop:
        dropped = written = "there are no earlier turns to drop"
    branched = "with the same system prompt; this chat is not changed"
    if not can_branch:
        branched = "this is the only question: a new chat would be just as full"
    returns = choices.can_take_back
    stopped = "the question returns to the composer" if returns else "nothing changes"
    yield _row("d", "Drop the oldest turns", dropped, "shift", can_drop)
    yield _row("s", "Summarise the oldest turns", written, "summarise", can_drop)
    yield _row("n", "New chat with the last question", branched, "branch", can_branch)
    yield _row("esc", "Stop here", stopped, "stop", True)


def _row(
    key: str, title: str, meaning: str, choice: ContextChoice, can: bool
) -> Row[ContextChoice]:
    key_style, title_style = ("accent", "strong") if can else ("muted", "muted")
    above = (Run(f"{key:>4}  ", key_style), Run(title, title_style))
    below = (Run(f"      {meaning}", "muted"),)
    return Row(choice, partial(clipped, above), partial(clipped, below), is_enabled=can)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
