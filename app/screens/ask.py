"""Small dialogs: a line of text, yes or no, and a moment to wait."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class AskLine(ModalScreen[str | None]):
    """Asks for one line; None when left with esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", "Cancel", id="ask-cancel", tooltip="Leave it as it is"),
    ]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Input(self._value, id="line")
            yield Static("enter accepts · esc cancels", classes="hint", markup=False)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        self.dismiss(message.value.strip() or None)


class AskYes(ModalScreen[bool]):
    """Asks whether something is to be done."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes", id="ask-yes", tooltip="Do it"),
        Binding("n,escape", "answer(False)", "No", id="ask-no", tooltip="Leave it as it is"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Static("y does it · n or esc leaves it", classes="hint", markup=False)

    def action_answer(self, is_yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(is_yes)


class Saving(ModalScreen[None]):
    """Stands before everything else while the program ends."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static("saving what is kept of the chats … some seconds at most", markup=False)
