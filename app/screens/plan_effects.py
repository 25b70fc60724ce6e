"""The changes worth a thought, to take one of them."""

from functools import partial
from typing import ClassVar

from app.render.lines import Line
from app.render.plan_changes import effect_line
from app.screens.plan_pick import PickScreen, Row
from engine.planning.planner import Setup
from engine.planning.what_if import Effect


class EffectsScreen(PickScreen[Setup]):
    """Gives the setup of the change to take, None to stay."""

    TITLE_TEXT: ClassVar[str] = "change what?"

    def __init__(self, effects: tuple[Effect, ...]) -> None:
        """Take the changes, the best first."""
        super().__init__()
        self._effects = effects

    def on_mount(self) -> None:
        super().on_mount()
        rows = [Row(each.setup, each.label.lower(), partial(_line, each)) for each in self._effects]
        self.show_all(rows, note="what each does to the memory, and to the largest context")


def _line(effect: Effect, width: int) -> Line:
    del width
    return effect_line(effect)
