"""Compare: one prompt answered by two arms, side by side, with a verdict."""

from collections.abc import Sequence
from dataclasses import replace
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
from app.render.lines import Line, Run, field, indented
from app.render.transcript import TINT_MODES, TintedText, TintMode
from app.screens.dialogs import PickScreen, ask
from app.widgets.bars import KeyBar
from app.widgets.composer import Composer
from app.widgets.ink import InkLines, LinesView
from app.widgets.select_list import Row
from engine.configuration import (
    ControllerName,
    PredictorName,
    SpeculationSettings,
)
from engine.experiment.arm import PLAIN, Arm, arm_of, drafting_arm
from engine.experiment.comparison import MAX_TOKENS, Comparison
from engine.experiment.gain import ORDER
from engine.experiment.runner import ArmReply
from engine.planning.values import step_round
from engine.requests import GenerationRequest

FRAME_S = 0.2
"""Seconds between two redraws; long, because the engine needs the CPU."""
WIDTHS = [(0, "-narrow"), (100, "-wide")]
HEIGHTS = [(0, "-low"), (32, "-tall")]
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
        Binding("f4", "leave", "Back", id="compare-back", show=False, priority=True),
        Binding("e", "edit_prompt", "Prompt", id="compare-prompt",
                tooltip="Edit the prompt for both sides; enter starts the comparison"),
        Binding("r", "run(5)", "Run more", id="compare-run",
                tooltip="Run up to five more blocks of four replies, until the faster side is "
                        "known"),
        Binding("tab", "app.focus_next", "Side", id="compare-side",
                tooltip="Select the other side"),
        Binding("enter", "choose", "Choose", id="compare-choose",
                tooltip="Choose the predictor and draft length of the selected side"),
        Binding("t", "tint", "Colours", id="compare-colours",
                tooltip="Switch token colours: by predictor, by accepted/rejected, off"),
        Binding("y", "copy", "Copy", id="compare-copy", tooltip="Copy the figures and the verdict"),
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
        """The request that both arms answer; it has no messages until the user starts."""
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
        limit = counted(MAX_TOKENS, "token")
        self.prompt.border_subtitle = f"enter generates {len(ORDER)} replies of at most {limit}"
        self.set_interval(FRAME_S, self.show_now)
        self.action_edit_prompt()

    @property
    def prompt(self) -> Composer:
        """The input for the prompt that both arms answer."""
        return self.query_one(Composer)

    # --- the prompt ---

    def action_edit_prompt(self) -> None:
        if not self._is_busy():
            self.add_class("-asking")
            self.prompt.focus()

    def action_send(self) -> None:
        if self.prompt.text.strip():
            self.action_run(1)
        else:
            self.notify(NO_PROMPT)

    def _use_prompt(self) -> bool:
        """Compare with the written prompt from now on; False if there is none."""
        conversation, written = self._conversation, self.prompt.written
        text = ""  # the last question of the chat, with its files
        if not self._is_repeated or written != self._proposed:
            text = written_message(written, self._folder, conversation.blindness)
        request = request_of(conversation, text)
        if request is None:
            self.notify(NO_PROMPT)
            return False
        self._request, self.comparison = request, self._new_comparison(request)
        return True

    # --- showing ---

    def show_now(self) -> None:
        """Paint both arms and the verdict."""
        title = self.query_one("#compare-question", InkLines)
        title.show([question_line(self.prompt.text, self._request, title.size.width)])
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
        if text.update(answer, self._tint):
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
            if (problem := obstacle(self._conversation)) is not None:
                self.notify(problem, severity="warning")
                return
            if self.has_class("-asking") or not self._request.messages:
                if not self._use_prompt():
                    return
                self._hide_prompt()
            self._conversation.task = self.comparison
        self.comparison.add_blocks(n_blocks)
        self.show_now()

    def _hide_prompt(self) -> None:
        self.remove_class("-asking")
        self.query_one("#answer-1").focus()

    def action_leave(self) -> None:
        if self.comparison.is_running:
            self.comparison.stop()
        elif self.has_class("-asking") and self._request.messages:
            self._hide_prompt()
        else:
            self.dismiss()

    # --- the arms ---

    def action_choose(self) -> None:
        loaded = self._conversation.loaded
        if loaded is None or self._is_busy():
            return
        now = self.arms[self._focused_index]

        def chosen(arm: Arm) -> None:
            if arm != now:
                self._change(arm)

        choices = arm_choices(loaded.predictors, self._conversation.speculation)
        ask(self, arm_list(choices, now), chosen)

    def action_tint(self) -> None:
        self._tint = step_round(TINT_MODES, self._tint, 1)
        self.show_now()

    def action_copy(self) -> None:
        copy(self.app, comparison_text(self.comparison))

    @property
    def _focused_index(self) -> int:
        return 0 if self.query_one("#answer-0").has_focus else 1

    def _change(self, arm: Arm) -> None:
        if not self._is_busy():
            first, second = self.arms
            self.arms = (first, arm) if self._focused_index else (arm, second)
            self.comparison = self._new_comparison()
            self.show_now()

    def _is_busy(self) -> bool:
        if self.comparison.is_running:
            self.notify("A reply is running: esc stops it.")
        return self.comparison.is_running

    def _new_comparison(self, request: GenerationRequest | None = None) -> Comparison:
        conversation = self._conversation
        return Comparison(
            conversation.client,
            request or self._request,
            self.arms,
            speculation=conversation.speculation,
        )


class AnswerText:
    """The text of an arm's answer, of which only what is new is laid out."""

    def __init__(self) -> None:
        self._answer: ArmReply | None = None
        self._text = TintedText("source")
        self._n_events = 0

    def update(self, answer: ArmReply | None, tint: TintMode) -> bool:
        """Add the new tokens of an answer; False if nothing changed."""
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
        Row.of(arm, Run(arm.name, "strong"), words=arm.name.replace(":", " ")) for arm in choices
    ]
    return PickScreen("predictor and draft length of this side", rows, mark=now)
