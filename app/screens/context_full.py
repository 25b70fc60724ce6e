"""What to do where the context is full: the user chooses, nothing goes by itself."""

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.chat.context_full import ContextFullOptions
from app.format import counted

MUTED = "$foreground 60%"

ContextChoice = Literal["shift", "summarise", "branch", "stop"]


class ContextFullScreen(ModalScreen[ContextChoice]):
    """Gives what the user chose; `stop` when left."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "choose('stop')", "Stop", id="context-stop",
                tooltip="Change nothing"),
        Binding("d", "choose('shift')", "Drop", id="context-shift",
                tooltip="The model no longer sees the oldest turns"),
        Binding("s", "choose('summarise')", "Summarise", id="context-summarise",
                tooltip="The model sees a summary of the oldest turns in their place"),
        Binding("n", "choose('branch')", "New chat", id="context-branch",
                tooltip="Ask the last question in a new chat"),
        Binding("j", "move(1)", "Down", id="context-down", show=False, tooltip="Next choice"),
        Binding("k", "move(-1)", "Up", id="context-up", show=False, tooltip="Choice above"),
    ]  # fmt: skip

    def __init__(self, why: str, choices: ContextFullOptions) -> None:
        super().__init__()
        self._why = why
        self._choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide"):
            yield Static("the context is full", classes="title", markup=False)
            yield Static(f"{_sentence(self._why)}\n", markup=False)
            yield OptionList(*self._options(), id="context-choices")
            larger = " · the planner (f2) sets a larger context" if self._choices.can_grow else ""
            yield Static(f"enter chooses{larger}", classes="hint", markup=False)

    def on_mount(self) -> None:
        place = 0 if self._choices.n_dropped else 2 if self._choices.can_branch else 3
        for options in self.query(OptionList):  # none where the app ends before it is composed
            options.highlighted = place
            options.focus()

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.action_choose(message.option_id or "stop")

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

    def action_move(self, step: int) -> None:
        """Go down or up."""
        options = self.query_one(OptionList)
        if step > 0:
            options.action_cursor_down()
        else:
            options.action_cursor_up()

    def _options(self) -> list[Option]:
        choices = self._choices
        is_droppable = bool(choices.n_dropped)
        oldest = f"the oldest {counted(choices.n_dropped, 'message')}"
        none = "no earlier turn could go"
        dropped = f"the model no longer sees {oldest}; u undoes it" if is_droppable else none
        written = f"the model writes it, for {oldest}; u undoes it" if is_droppable else none
        branched = "with the same system prompt; this chat stays as it is"
        alone = "the question is the only one: a new chat would be as full"
        back = "the question goes back to where it was written"
        return [
            _option("d", "Drop the oldest turns", dropped, "shift", can=is_droppable),
            _option("s", "A summary in their place", written, "summarise", can=is_droppable),
            _option(
                "n",
                "New chat with the last question",
                branched if choices.can_branch else alone,
                "branch",
                can=choices.can_branch,
            ),
            _option(
                "esc",
                "Stop here",
                back if choices.can_take_back else "nothing is changed",
                "stop",
                can=True,
            ),
        ]


def _option(key: str, title: str, meaning: str, choice: ContextChoice, *, can: bool) -> Option:
    styled = (title, "bold") if can else (title, MUTED)
    prompt = Content.assemble(
        (f"{key:>4}  ", "$text-accent" if can else MUTED),
        styled,
        "\n      ",
        (meaning, MUTED),
    )
    return Option(prompt, choice, disabled=not can)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
