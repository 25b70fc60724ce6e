"""Compare: one prompt answered by two ways of drafting, side by side, with a verdict."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical
from textual.screen import Screen

from app.chat.attachments import written_message
from app.chat.conversation import Conversation
from app.clipboard import copy
from app.compare.comparison import Answer, Comparison
from app.compare.side import (
    MAX_TOKENS,
    Side,
    obstacle,
    plain_side,
    prompt_of,
    request_of,
    side_choices,
    speculative_side,
)
from app.format import counted
from app.render.compare import comparison_text, figure_lines, question_line, verdict_lines
from app.render.lines import Line, Run, clipped, field, indented
from app.render.transcript import TINT_MODES, TintedText, TintMode
from app.screens.dialogs import PickScreen, ask, report
from app.widgets.bars import KeyBar
from app.widgets.composer import Composer
from app.widgets.ink import InkLines, LinesView
from app.widgets.select_list import Row
from engine.configuration import ControllerName, PredictorName
from engine.errors import EngineError
from engine.planning.values import step_round
from engine.requests import GenerationRequest

FRAME_S = 0.2
"""Time between two paintings: the engine needs the cores."""
WIDTHS = [(0, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-low"), (32, "-tall")]
TOKENS = (32, 4096)
"""Fewest and most tokens of a reply that the keys give."""

NO_PROMPT = "The prompt is empty: write a prompt first."


class CompareScreen(Screen[None]):
    """Runs pairs and shows the newest one."""

    CSS_PATH: ClassVar[list[str | PurePath]] = ["../styles/compare.tcss"]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    AUTO_FOCUS = "#compare-prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Stop, back", id="compare-back",
                tooltip="Stop the reply; if none is running, go back to the chat"),
        Binding("e", "edit_prompt", "Prompt", id="compare-prompt",
                tooltip="Edit the prompt for both sides; enter starts"),
        Binding("r", "run(1)", "Run again", id="compare-run",
                tooltip="Run another pair; the verdict is the median of all pairs"),
        Binding("R", "run(5)", "5 times", id="compare-run-five", tooltip="Run five more pairs"),
        Binding("tab", "app.focus_next", "Side", id="compare-side",
                tooltip="Go to the other side: f5, f7, f8 and f10 change the side in focus"),
        Binding("enter", "choose", "Choose", id="compare-choose",
                tooltip="Choose predictor and controller of the side in focus"),
        Binding("f5", "predictor", "Predictor", id="compare-predictor",
                tooltip="Switch the predictor of the side in focus"),
        Binding("f10", "controller", "Controller", id="compare-rule",
                tooltip="Switch the controller of the side in focus"),
        Binding("f7", "length(-1)", "Shorter drafts", id="compare-shorter", show=False,
                tooltip="Shorter drafts for the side in focus"),
        Binding("f8", "length(1)", "Longer drafts", id="compare-longer", show=False,
                tooltip="Longer drafts for the side in focus"),
        Binding("t", "tint", "Colours", id="compare-colours",
                tooltip="Switch token colours: by predictor, by accepted/rejected, off"),
        Binding("plus", "tokens(2)", "Longer replies", id="compare-more-tokens",
                show=False, tooltip="Double the tokens per reply"),
        Binding("minus", "tokens(0.5)", "Shorter replies", id="compare-fewer-tokens", show=False,
                tooltip="Halve the tokens per reply"),
        Binding("y", "copy", "Copy", id="compare-copy", tooltip="Copy figures and verdict"),
        Binding("f4", "leave", "Back", id="compare-back-too", show=False, priority=True,
                tooltip="Stop the reply; if none is running, go back to the chat"),
    ]  # fmt: skip

    def __init__(
        self,
        controller: Conversation,
        composed: str,
        *,
        folder: Path,
        tint: TintMode = "source",
    ) -> None:
        """Compare plain decoding with what the chat has on.

        Args:
            controller: The chat, whose engine answers; it must be idle.
            composed: What stands in the chat's composer; empty proposes its last question.
            folder: Where the files lie that a prompt names.
            tint: How tokens are coloured.
        """
        super().__init__()
        self._controller = controller
        self._proposed = prompt_of(controller, composed, folder)
        self._is_repeated = not composed.strip()
        """What is proposed is the chat's last question."""
        self._request = GenerationRequest(
            (), sampling=controller.history.sampling, max_tokens=MAX_TOKENS
        )
        """What both sides answer; without messages before the user has started it."""
        self._folder = folder
        self._tint: TintMode = tint if tint != "off" else "source"
        settings = controller.speculation
        self.sides = (plain_side(settings), speculative_side(settings))
        self._answers = (AnswerText(), AnswerText())
        self.comparison = self._new_comparison()

    def compose(self) -> ComposeResult:
        yield InkLines(id="compare-question")
        yield Composer(id="compare-prompt")
        with Container(id="compare-sides"):
            for index in range(2):
                with Vertical(classes="compare-side"):
                    yield LinesView(below=None, follows=True, can_focus=True, id=f"answer-{index}")
                    yield InkLines(id=f"figures-{index}").add_class("compare-figures")
        yield InkLines(id="compare-verdict")
        yield KeyBar(id="keys")

    def on_mount(self) -> None:
        self.query_one("#compare-verdict", InkLines).set_frame(title="verdict")
        self.prompt.begin(self._proposed)
        self.prompt.border_title = "prompt"
        self.set_interval(FRAME_S, self.show_now)
        self.action_edit_prompt()

    @property
    def prompt(self) -> Composer:
        """Where the user writes what both sides answer."""
        return self.query_one(Composer)

    # --- what is answered ---

    def action_edit_prompt(self) -> None:
        if not self._is_busy():
            self.add_class("-asking")
            self.prompt.focus()

    def action_send(self) -> None:
        if self.prompt.text.strip():
            self.action_run(1)
        else:
            self.notify(NO_PROMPT)

    def _take_prompt(self) -> bool:
        """Ask what stands in the prompt from now on; False where nothing stands there."""
        controller, written = self._controller, self.prompt.written
        is_repeated = self._is_repeated and written == self._proposed
        limit = self._request.max_tokens or MAX_TOKENS
        try:
            text = (
                "" if is_repeated else written_message(written, self._folder, controller.blindness)
            )
            request = request_of(controller, text, max_tokens=limit)
        except EngineError as error:
            report(self, error)
            return False
        if request is None:
            self.notify(NO_PROMPT)
            return False
        self._request = request
        self.comparison = self._new_comparison()
        return True

    # --- what it shows ---

    def show_now(self) -> None:
        """Paint both sides and the verdict as they stand."""
        title = self.query_one("#compare-question", InkLines)
        title.show([question_line(self.prompt.text, self._request, title.size.width)])
        pair = f"2 replies of at most {counted(self._request.max_tokens or 0, 'token')}"
        self.prompt.border_subtitle = f"enter: {pair} · tab, then + or -: length, r: run"
        for index, side in enumerate(self.sides):
            self._show_side(index, side)
        verdict = self.query_one("#compare-verdict", InkLines)
        if verdict.size.width:
            lines = verdict_lines(self.comparison, verdict.size.width)
            legend = max((text.legend for text in self._answers), key=len)
            lines += field("colour", legend[1:], verdict.size.width) if legend else []
            verdict.show(lines)

    def _show_side(self, index: int, side: Side) -> None:
        answer, text = self.comparison.shown[index], self._answers[index]
        view = self.query_one(f"#answer-{index}", LinesView)
        if text.take(answer, self._tint):
            view.present(text.lines)
        running = self.comparison.running_side == index
        view.set_frame(title=side.label, hint="answers now" if running else "")
        figures = self.query_one(f"#figures-{index}", InkLines)
        figures.show(indented(figure_lines(answer, figures.size.width - 4), 2))

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_now)

    # --- running ---

    def action_run(self, n_pairs: int) -> None:
        if not self.comparison.is_running:
            problem = obstacle(self._controller)
            if problem is not None:
                self.notify(problem, severity="warning")
                return
            is_asking = self.has_class("-asking") or not self._request.messages
            if is_asking and not self._take_prompt():
                return
            if is_asking:
                self.remove_class("-asking")
                self.query_one("#answer-1").focus()
            self._controller.lease = self.comparison
        self.comparison.add_pairs(n_pairs)
        self.show_now()

    def action_leave(self) -> None:
        if self.comparison.is_running:
            self.comparison.stop()
        elif self.has_class("-asking") and self._request.messages:
            self.remove_class("-asking")
            self.query_one("#answer-1").focus()
        else:
            self.dismiss()

    # --- the sides ---

    def action_choose(self) -> None:
        loaded = self._controller.loaded
        if loaded is None or self._is_busy():
            return
        now = self._focused_side

        def chosen(side: Side) -> None:
            if side != now:
                self._change(side)

        found = side_choices(loaded.predictors, self._controller.speculation)
        ask(self, side_list(found, now), chosen)

    def action_predictor(self) -> None:
        loaded = self._controller.loaded
        names = [PredictorName(name) for name in loaded.predictors] if loaded else []
        now = self._focused_side.settings.predictor
        if names:
            other = step_round(names, now, 1) if now in names else names[0]
            self._change(self._focused_side.with_predictor(other))

    def action_controller(self) -> None:
        now = self._focused_side.settings.controller
        self._change(self._focused_side.with_controller(step_round(list(ControllerName), now, 1)))

    def action_length(self, step: int) -> None:
        side = self._focused_side
        if side.settings.controller is ControllerName.AUTO:
            self.notify(
                "The auto controller sets the draft length itself: choose the fixed "
                "controller first."
            )
            return
        self._change(side.with_length(side.settings.n_draft + step))

    def action_tokens(self, factor: float) -> None:
        if self._is_busy():
            return
        low, high = TOKENS
        n_tokens = round((self._request.max_tokens or high) * factor)
        self._request = replace(self._request, max_tokens=min(max(n_tokens, low), high))
        self._begin_anew()

    def action_tint(self) -> None:
        self._tint = step_round(TINT_MODES, self._tint, 1)
        self.show_now()

    def action_copy(self) -> None:
        copy(self.app, comparison_text(self.comparison))

    @property
    def _focused_index(self) -> int:
        return 0 if self.query_one("#answer-0").has_focus else 1

    @property
    def _focused_side(self) -> Side:
        return self.sides[self._focused_index]

    def _change(self, side: Side) -> None:
        sides = list(self.sides)
        sides[self._focused_index] = side
        self._begin_anew((sides[0], sides[1]))

    def _begin_anew(self, sides: tuple[Side, Side] | None = None) -> None:
        if self._is_busy():
            return
        self.sides = sides or self.sides
        self.comparison = self._new_comparison()
        self.show_now()

    def _is_busy(self) -> bool:
        if self.comparison.is_running:
            self.notify("A reply is running: esc stops it.")
        return self.comparison.is_running

    def _new_comparison(self) -> Comparison:
        controller = self._controller
        return Comparison(
            controller.client,
            self._request,
            self.sides,
            restore=controller.speculation,
        )


class AnswerText:
    """The text of one side's answer, of which only what is new is laid out."""

    def __init__(self) -> None:
        self._answer: Answer | None = None
        self._text = TintedText("source")

    def take(self, answer: Answer | None, tint: TintMode) -> bool:
        """Hold an answer as it is now; False where nothing is new."""
        is_other = answer is not self._answer or tint != self._text.mode
        if is_other:
            self._answer, self._text = answer, TintedText(tint)
        new = () if answer is None else answer.spans[len(self._text.spans) :]
        self._text.append(new)
        return is_other or bool(new)

    @property
    def legend(self) -> Line:
        """What its colours mean."""
        return self._text.legend

    def lines(self, width: int) -> list[Line]:
        """The text at a width."""
        return self._text.lines(width) if self._answer is not None else []


def side_list(choices: Sequence[Side], now: Side) -> PickScreen[Side]:
    """The ways in which a side may draft.

    Args:
        choices: What there is to choose from.
        now: What the side is now.
    """
    rows = [
        Row(side, partial(clipped, (Run(side.label, "strong"),)), words=side.label.lower())
        for side in choices
    ]
    return PickScreen("predictor and controller of this side", rows, mark=now)
