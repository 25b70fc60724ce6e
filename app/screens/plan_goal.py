"""What the search is to make best."""

from typing import ClassVar

from app.render.lines import Line, Run
from app.screens.plan_pick import PickScreen, Row
from engine.planning.fit import GOAL_TEXTS
from engine.planning.goals import Goal


class GoalScreen(PickScreen[Goal]):
    """Gives the goal to search for, None to stay."""

    TITLE_TEXT: ClassVar[str] = "search for the best"
    HINT: ClassVar[str] = "enter searches · esc closes"

    def on_mount(self) -> None:
        super().on_mount()
        rows = [
            Row(goal, str(goal), lambda _, goal=goal: _line(goal))  # type: ignore[misc]  # a default
            for goal in Goal
        ]
        note = (
            "Chooses context, KV types, layers, experts and batches.\n"
            "Layers leave the GPU only where they must or hardly cost speed."
        )
        self.show_all(rows, note=note)


def _line(goal: Goal) -> Line:
    return (Run(f"{goal:<10}", "strong"), Run(GOAL_TEXTS[goal], "muted"))
