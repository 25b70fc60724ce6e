"""What to do where the context is full: the user chooses, nothing goes by itself."""

from collections.abc import Iterator
from functools import partial
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

from app.chat.context_full import ContextFullOptions
from app.format import counted
from app.render.lines import Run, clipped
from app.widgets.select_list import Row, SelectList

ContextChoice = Literal["shift", "summarise", "branch", "stop"]


class ContextFullScreen(ModalScreen[ContextChoice]):
    """The choices; the result is the one that was made, `stop` when the dialog is left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose('stop')", "Stop", id="context-stop",
                tooltip="Change nothing"),
        Binding("d", "choose('shift')", "Drop", id="context-shift",
                tooltip="The model no longer sees the oldest turns"),
        Binding("s", "choose('summarise')", "Summarise", id="context-summarise",
                tooltip="The model sees a summary of the oldest turns in their place"),
        Binding("n", "choose('branch')", "New chat", id="context-branch",
                tooltip="Ask the last question in a new chat"),
        Binding("j", "app.simulate_key('down')", "Down", id="context-down", show=False,
                tooltip="Next choice"),
        Binding("k", "app.simulate_key('up')", "Up", id="context-up", show=False,
                tooltip="Choice above"),
    ]  # fmt: skip

    def __init__(self, why: str, choices: ContextFullOptions) -> None:
        super().__init__()
        self._why = why
        self._choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("the context is full", classes="title", markup=False)
            yield Static(f"{_sentence(self._why)}\n", markup=False)
            yield SelectList(click_picks=True, id="context-choices")
            larger = " · the planner (f2) sets a larger context" if self._choices.can_grow else ""
            yield Static(f"enter chooses{larger}", classes="hint", markup=False)

    def on_mount(self) -> None:
        for rows in self.query(SelectList):  # none where the app ends before it is composed
            rows.show_rows(list(_rows(self._choices)))
            rows.focus()

    def on_select_list_picked(self) -> None:
        self.action_choose(str(self.query_one(SelectList).marked_key))

    def action_choose(self, choice: str) -> None:
        """Close with a choice, if it can be made."""
        match choice:
            case "shift" | "summarise" if self._choices.n_dropped:
                self.dismiss("shift" if choice == "shift" else "summarise")
            case "branch" if self._choices.can_branch:
                self.dismiss("branch")
            case "stop":
                self.dismiss("stop")
            case _:
                self.app.bell()


def _rows(choices: ContextFullOptions) -> Iterator[Row[ContextChoice]]:
    oldest = f"the oldest {counted(choices.n_dropped, 'message')}"
    none = "no earlier turn could go"
    dropped = f"the model no longer sees {oldest}; u undoes it" if choices.n_dropped else none
    written = f"the model writes it, for {oldest}; u undoes it" if choices.n_dropped else none
    branched = "with the same system prompt; this chat stays as it is"
    alone = "the question is the only one: a new chat would be as full"
    back = "the question goes back to where it was written"
    can_drop, can_branch = bool(choices.n_dropped), choices.can_branch
    yield _row("d", "Drop the oldest turns", dropped, "shift", can=can_drop)
    yield _row("s", "A summary in their place", written, "summarise", can=can_drop)
    yield _row(
        "n",
        "New chat with the last question",
        branched if can_branch else alone,
        "branch",
        can=can_branch,
    )
    stopped = back if choices.can_take_back else "nothing is changed"
    yield _row("esc", "Stop here", stopped, "stop", can=True)


def _row(
    key: str, title: str, meaning: str, choice: ContextChoice, *, can: bool
) -> Row[ContextChoice]:
    above = (
        Run(f"{key:>4}  ", "accent" if can else "muted"),
        Run(title, "strong" if can else "muted"),
    )
    below = (Run(f"      {meaning}", "muted"),)
    return Row(choice, partial(clipped, above), partial(clipped, below), is_enabled=can)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
