"""How one side of a comparison drafts."""

from functools import partial
from typing import ClassVar

from app.compare.side import Side, SideChoice
from app.render.lines import Line, Run
from app.screens.plan_pick import PickScreen, Row


class SidesScreen(PickScreen[Side]):
    """Gives the side that was chosen, None to stay."""

    TITLE_TEXT: ClassVar[str] = "this side answers with"

    def __init__(self, choices: list[SideChoice], now: Side) -> None:
        """Take what there is to choose from, and what the side is now."""
        super().__init__()
        self._choices = choices
        self._now = now

    def on_mount(self) -> None:
        super().on_mount()
        rows = [
            Row(choice.side, f"{choice.side.label} {choice.origin}".lower(), partial(_line, choice))
            for choice in self._choices
        ]
        places = [i for i, choice in enumerate(self._choices) if choice.side == self._now]
        note = "of a preset only how it drafts; the model stays as it is loaded"
        self.show_all(rows, note=note, place=places[0] if places else 0)


def _line(choice: SideChoice, width: int) -> Line:
    del width
    origin = f"preset {choice.origin}" if choice.origin else ""
    return (Run(f"{choice.side.label:<24}", "strong"), Run(origin, "muted"))
