"""Compare: one prompt answered by two arms, side by side, with a verdict."""

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
from app.chat.comparing import obstacle, prompt_of, request_of
from app.chat.conversation import Conversation
from app.chat.spans import spans_of
from app.clipboard import copy
from app.format import counted
from app.render.compare import comparison_text, figure_lines, question_line, verdict_lines
from app.render.lines import Line, Run, clipped, field, indented
from app.render.transcript import TINT_MODES, TintedText, TintMode
from app.screens.dialogs import PickScreen, ask, report
from app.widgets.bars import KeyBar
from app.widgets.composer import Composer
from app.widgets.ink import InkLines, LinesView
from app.widgets.select_list import Row
from engine.configuration import (
    MAX_DRAFT,
    ControllerName,
    PredictorName,
    SpeculationSettings,
)
from engine.errors import EngineError
from engine.experiment.arm import PLAIN, Arm, arm_of, drafting_arm
from engine.experiment.comparison import MAX_TOKENS, Comparison
from engine.experiment.gain import ORDER
from engine.experiment.runner import ArmReply
from engine.planning.values import step_round
from engine.requests import GenerationRequest

FRAME_S = 0.2
"""Time between two paintings: the engine needs the cores."""
WIDTHS = [(0, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-low"), (32, "-tall")]
MIN_TOKENS, MAX_REPLY_TOKENS = 32, 4096
"""Limits of the maximum tokens of a reply that the keys set."""

NO_PROMPT = "The prompt is empty: write a prompt first."


class CompareScreen(Screen[None]):
    """Runs blocks of four replies and shows the newest reply of each arm."""

    CSS_PATH: ClassVar[list[str | PurePath]] = ["../styles/compare.tcss"]
    HORIZONTAL_BREAKPOINTS = WIDTHS
    VERTICAL_BREAKPOINTS = HEIGHTS
    AUTO_FOCUS = "#compare-prompt"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Stop, back", id="compare-back",
                tooltip="Stop the reply; if none is running, go back to the chat"),
        Binding("e", "edit_prompt", "Prompt", id="compare-prompt",
                tooltip="Edit the prompt for both sides; enter starts the comparison"),
        Binding("r", "run(1)", "Run again", id="compare-run",
                tooltip="Run one more block of four replies; a verdict needs six blocks"),
        Binding("R", "run(5)", "5 times", id="compare-run-five",
                tooltip="Run up to five more blocks, until the faster side is known"),
        Binding("tab", "app.focus_next", "Side", id="compare-side",
                tooltip="Select the other side; f5, f7, f8 and f10 change the selected side"),
        Binding("enter", "choose", "Choose", id="compare-choose",
                tooltip="Choose the predictor and controller of the selected side"),
        Binding("f5", "predictor", "Predictor", id="compare-predictor",
                tooltip="Switch the predictor of the selected side"),
        Binding("f10", "controller", "Controller", id="compare-rule",
                tooltip="Switch the controller of the selected side"),
        Binding("f7", "length(-1)", "Shorter drafts", id="compare-shorter", show=False,
                tooltip="Use shorter drafts on the selected side"),
        Binding("f8", "length(1)", "Longer drafts", id="compare-longer", show=False,
                tooltip="Use longer drafts on the selected side"),
        Binding("t", "tint", "Colours", id="compare-colours",
                tooltip="Switch token colours: by predictor, by accepted/rejected, off"),
        Binding("plus", "tokens(2)", "Longer replies", id="compare-more-tokens",
                show=False, tooltip="Double the tokens per reply"),
        Binding("minus", "tokens(0.5)", "Shorter replies", id="compare-fewer-tokens", show=False,
                tooltip="Halve the tokens per reply"),
        Binding("y", "copy", "Copy", id="compare-copy", tooltip="Copy the figures and the verdict"),
        Binding("f4", "leave", "Back", id="compare-back-too", show=False, priority=True,
                tooltip="Stop the reply; if none is running, go back to the chat"),
    ]  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        composed: str,
        *,
        folder: Path,
        tint: TintMode = "source",
    ) -> None:
        """Compare plain decoding with the chat's settings.

        Args:
            conversation: The chat, whose engine answers; it must be idle.
            composed: The text in the chat's composer; empty proposes its last question.
            folder: Where the files are that a prompt names.
            tint: How tokens are coloured.
        """
        super().__init__()
        self._conversation = conversation
        self._proposed = prompt_of(conversation, composed, folder)
        self._is_repeated = not composed.strip()
        """Whether the proposed prompt is the chat's last question."""
        self._request = GenerationRequest(
            (), sampling=conversation.history.sampling, max_tokens=MAX_TOKENS
        )
        """What both arms answer; without messages until the user starts."""
        self._folder = folder
        self._tint: TintMode = tint if tint != "off" else "source"
        self.arms = (PLAIN, drafting_arm(conversation.speculation))
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
        """Where the user writes what both arms answer."""
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
        """Use the written prompt from now on; False if there is none."""
        conversation, written = self._conversation, self.prompt.written
        is_repeated = self._is_repeated and written == self._proposed
        limit = self._request.max_tokens or MAX_TOKENS
        try:
            text = (
                ""
                if is_repeated
                else written_message(written, self._folder, conversation.blindness)
            )
            request = request_of(conversation, text, max_tokens=limit)
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
        """Paint both arms and the verdict."""
        title = self.query_one("#compare-question", InkLines)
        title.show([question_line(self.prompt.text, self._request, title.size.width)])
        limit = counted(self._request.max_tokens or 0, "token")
        replies = f"{len(ORDER)} replies of at most {limit}"
        self.prompt.border_subtitle = f"enter: {replies} · after tab: +/- tokens, r run"
        for index, arm in enumerate(self.arms):
            self._show_arm(index, arm)
        verdict = self.query_one("#compare-verdict", InkLines)
        if verdict.size.width:
            lines = verdict_lines(self.comparison, verdict.size.width)
            legend = max((text.legend for text in self._answers), key=len)
            lines += field("colour", legend[1:], verdict.size.width) if legend else []
            verdict.show(lines)

    def _show_arm(self, index: int, arm: Arm) -> None:
        answer, text = self.comparison.shown[index], self._answers[index]
        view = self.query_one(f"#answer-{index}", LinesView)
        if text.take(answer, self._tint):
            view.present(text.lines)
        running = self.comparison.running_arm == index
        view.set_frame(title=arm.name, hint="answers now" if running else "")
        figures = self.query_one(f"#figures-{index}", InkLines)
        figures.show(indented(figure_lines(answer, figures.size.width - 4), 2))

    def on_resize(self) -> None:
        self.call_after_refresh(self.show_now)

    # --- running ---

    def action_run(self, n_blocks: int) -> None:
        if not self.comparison.is_running:
            problem = obstacle(self._conversation)
            if problem is not None:
                self.notify(problem, severity="warning")
                return
            is_asking = self.has_class("-asking") or not self._request.messages
            if is_asking and not self._take_prompt():
                return
            if is_asking:
                self.remove_class("-asking")
                self.query_one("#answer-1").focus()
            self._conversation.task = self.comparison
        self.comparison.add_blocks(n_blocks)
        self.show_now()

    def action_leave(self) -> None:
        if self.comparison.is_running:
            self.comparison.stop()
        elif self.has_class("-asking") and self._request.messages:
            self.remove_class("-asking")
            self.query_one("#answer-1").focus()
        else:
            self.dismiss()

    # --- the arms ---

    def action_choose(self) -> None:
        loaded = self._conversation.loaded
        if loaded is None or self._is_busy():
            return
        now = self._focused_arm

        def chosen(arm: Arm) -> None:
            if arm != now:
                self._change(arm)

        choices = arm_choices(loaded.predictors, self._conversation.speculation)
        ask(self, arm_list(choices, now), chosen)

    def action_predictor(self) -> None:
        loaded = self._conversation.loaded
        names = [PredictorName(name) for name in loaded.predictors] if loaded else []
        if names:
            now = self._settings.predictor
            other = step_round(names, now, 1) if now in names else names[0]
            self._change(arm_of(replace(self._settings, predictor=other)))

    def action_controller(self) -> None:
        other = step_round(list(ControllerName), self._settings.controller, 1)
        self._change(arm_of(replace(self._settings, controller=other)))

    def action_length(self, step: int) -> None:
        settings = self._settings
        if settings.controller is ControllerName.AUTO:
            self.notify(
                "The auto controller sets the draft length: choose the fixed controller first."
            )
            return
        n_draft = min(max(settings.n_draft + step, 1), MAX_DRAFT)
        self._change(arm_of(replace(settings, n_draft=n_draft)))

    def action_tokens(self, factor: float) -> None:
        if self._is_busy():
            return
        n_tokens = round((self._request.max_tokens or MAX_REPLY_TOKENS) * factor)
        n_tokens = min(max(n_tokens, MIN_TOKENS), MAX_REPLY_TOKENS)
        self._request = replace(self._request, max_tokens=n_tokens)
        self._reset()

    def action_tint(self) -> None:
        self._tint = step_round(TINT_MODES, self._tint, 1)
        self.show_now()

    def action_copy(self) -> None:
        copy(self.app, comparison_text(self.comparison))

    @property
    def _focused_index(self) -> int:
        return 0 if self.query_one("#answer-0").has_focus else 1

    @property
    def _focused_arm(self) -> Arm:
        return self.arms[self._focused_index]

    @property
    def _settings(self) -> SpeculationSettings:
        """The settings of the arm in focus."""
        return self._focused_arm.of(self._conversation.speculation)

    def _change(self, arm: Arm) -> None:
        first, second = self.arms
        self._reset((first, arm) if self._focused_index else (arm, second))

    def _reset(self, arms: tuple[Arm, Arm] | None = None) -> None:
        if self._is_busy():
            return
        self.arms = arms or self.arms
        self.comparison = self._new_comparison()
        self.show_now()

    def _is_busy(self) -> bool:
        if self.comparison.is_running:
            self.notify("A reply is running: esc stops it.")
        return self.comparison.is_running

    def _new_comparison(self) -> Comparison:
        conversation = self._conversation
        return Comparison(
            conversation.client,
            self._request,
            self.arms,
            speculation=conversation.speculation,
        )


class AnswerText:
    """The text of an arm's answer, of which only what is new is laid out."""

    def __init__(self) -> None:
        self._answer: ArmReply | None = None
        self._text = TintedText("source")
        self._n_events = 0

    def take(self, answer: ArmReply | None, tint: TintMode) -> bool:
        """Hold an answer as it is now; False if nothing is new."""
        is_other = answer is not self._answer or tint != self._text.mode
        if is_other:
            self._answer, self._text, self._n_events = answer, TintedText(tint), 0
        new = () if answer is None else answer.committed[self._n_events :]
        self._n_events += len(new)
        self._text.append([span for event in new for span in spans_of(event)])
        return is_other or bool(new)

    @property
    def legend(self) -> Line:
        """The meaning of the colours."""
        return self._text.legend

    def lines(self, width: int) -> list[Line]:
        """The text at a width."""
        return self._text.lines(width) if self._answer is not None else []


def arm_choices(predictors: Sequence[str], settings: SpeculationSettings) -> list[Arm]:
    """Plain decoding, and each predictor that the model can use with each controller."""
    return [PLAIN] + [
        arm_of(replace(settings, predictor=PredictorName(name), controller=controller))
        for name in predictors
        if name != PredictorName.OFF
        for controller in (ControllerName.AUTO, ControllerName.FIXED)
    ]


def arm_list(choices: Sequence[Arm], now: Arm) -> PickScreen[Arm]:
    """A list of arms to choose from; `now` is marked."""
    rows = [
        Row(
            arm,
            partial(clipped, (Run(arm.name, "strong"),)),
            words=arm.name.replace(":", " "),
        )
        for arm in choices
    ]
    return PickScreen("predictor and controller of this side", rows, mark=now)
