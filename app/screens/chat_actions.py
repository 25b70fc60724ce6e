"""What the keys of the chat do."""

from dataclasses import replace
from typing import ClassVar

from textual.binding import BindingType

from app.chat.conversation import Conversation
from app.chat.entries import Speaker
from app.chat.snapshot import NO_MODEL
from app.chat_keys import CHAT_KEYS
from app.clipboard import copy
from app.render.markdown.document import code_blocks
from app.render.reply_stats import reply_stats_text
from app.render.transcript import TINT_MEANINGS, TINT_MODES, TintMode
from app.screens.chat_asking import ChatAsking
from app.startup import Services
from app.widgets.tab_strip import TabStrip
from app.widgets.transcript import Transcript
from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings
from engine.errors import EngineError


class ChatActions(ChatAsking):
    """Keys and their actions; the screen that is shown adds widgets and a clock."""

    BINDINGS: ClassVar[list[BindingType]] = CHAT_KEYS

    def __init__(self, controller: Conversation, services: Services) -> None:
        super().__init__(controller, services)
        self._copied_code: tuple[int, int] | None = None
        """The message whose code was copied last, and which block from its end."""

    # --- chats ---

    def action_new_chat(self) -> None:
        """Begin a new chat."""
        self.controller.new_chat()
        self.follow_chat()
        self.composer.focus()

    def open_chat(self, chat_id: int) -> None:
        super().open_chat(chat_id)
        self.follow_chat()
        self.transcript.action_follow()
        self.composer.focus()

    # --- engine ---

    def action_restart(self) -> None:
        """Start the engine again."""
        if self.controller.configuration is None:
            self.notify(NO_MODEL)
        else:
            self.load(self.controller.configuration)

    def action_next_predictor(self) -> None:
        """Switch to the next predictor that is there."""
        loaded = self.controller.loaded
        if loaded is None:
            self.notify("No model is loaded.")
            return
        names = [PredictorName(name) for name in loaded.predictors]
        now = self.controller.speculation.predictor
        place = names.index(now) + 1 if now in names else 0
        self.set_speculation(predictor=names[place % len(names)])

    def action_next_controller(self) -> None:
        """Switch to the next rule of the draft length."""
        names = list(ControllerName)
        place = names.index(self.controller.speculation.controller) + 1
        self.set_speculation(controller=names[place % len(names)])

    def action_draft_length(self, step: int) -> None:
        """Make drafts longer or shorter."""
        n_draft = min(max(self.controller.speculation.n_draft + step, 1), MAX_DRAFT)
        self.set_speculation(n_draft=n_draft)

    def action_compare(self) -> None:
        """Compare two ways to answer what stands in the composer, or the last question."""
        from app.compare.from_chat import obstacle
        from app.screens.compare import CompareScreen

        problem = obstacle(self.controller)
        if problem is not None:
            self.notify(problem)
            return
        screen = CompareScreen(
            self.controller,
            self.composer.text,
            presets_dir=self.services.presets_dir,
            tint=self.transcript.tint,
        )
        self.app.push_screen(screen)

    def set_speculation(
        self,
        *,
        predictor: PredictorName | None = None,
        controller: ControllerName | None = None,
        n_draft: int | None = None,
    ) -> None:
        """Change what is not None and say what is on now."""
        old = self.controller.speculation
        new = replace(
            old,
            predictor=predictor or old.predictor,
            controller=controller or old.controller,
            n_draft=n_draft or old.n_draft,
            n_draft_max=max(old.n_draft_max, n_draft or 0),
        )
        self.controller.set_speculation(new)
        self._remember(predictor, controller, n_draft)
        self.notify(_spelled(new), title="Speculation", timeout=2)

    def _remember(
        self,
        predictor: PredictorName | None,
        controller: ControllerName | None,
        n_draft: int | None,
    ) -> None:
        """Begin with the same at the next start; a predictor that needs a file is not for that."""
        usual = predictor not in (PredictorName.DRAFT, PredictorName.CUSTOM)
        kept = {
            "predictor": predictor.value if predictor and usual else None,
            "controller": controller.value if controller else None,
            "n_draft": n_draft,
        }
        try:
            for key, value in kept.items():
                if value is not None:
                    self.services.save_speculation(key, value)
        except EngineError as error:
            self.report(error)

    # --- copying ---

    def action_copy_message(self) -> None:
        """Copy the selected message, or the last reply."""
        message = self._selected(Speaker.MODEL)
        if message is None:
            self.notify("There is no reply to copy yet.")
            return
        copy(self.app, message.content)

    def action_copy_code(self) -> None:
        """Copy the last code block of a reply; the one before when pressed again."""
        message = self._selected(Speaker.MODEL)
        blocks = code_blocks(message.content) if message else []
        if message is None or not blocks:
            self.notify("There is no code block in this reply.")
            return
        back = 0
        if self._copied_code is not None and self._copied_code[0] == message.id:
            back = (self._copied_code[1] + 1) % len(blocks)
        self._copied_code = (message.id, back)
        copy(self.app, blocks[-1 - back], f"code block {len(blocks) - back} of {len(blocks)}")

    def action_statistics(self) -> None:
        """Show what was counted and timed of the selected reply, or the last one; or hide it."""
        message = self._selected(Speaker.MODEL)
        text = reply_stats_text(message) if message else None
        if message is None or text is None:
            self.notify("Nothing was measured of this reply.")
        else:
            self.controller.toggle_note(message.id, text)

    # --- the screen ---

    def action_next_tab(self) -> None:
        """Go to the next tab of a narrow screen."""
        self.query_one(TabStrip).next()

    def action_next_tint(self) -> None:
        """Colour tokens in the next way, and remember it."""
        mode = TINT_MODES[(TINT_MODES.index(self.transcript.tint) + 1) % len(TINT_MODES)]
        self.set_tint(mode)

    def set_tint(self, mode: TintMode) -> None:
        """Colour tokens in this way, and remember it."""
        self.transcript.set_tint(mode)
        try:
            self.services.save_tint(mode)
        except EngineError as error:
            self.report(error)
        self.notify(f"Token colours: {TINT_MEANINGS[mode]}", timeout=3)

    def on_transcript_clicked(self, message: Transcript.Clicked) -> None:
        self.transcript.selected = message.key


def _spelled(settings: SpeculationSettings) -> str:
    if settings.predictor is PredictorName.OFF:
        return "off: plain decoding"
    match settings.controller:
        case ControllerName.FIXED:
            rule = f"fixed at {settings.n_draft} tokens"
        case ControllerName.BAND:
            rule = f"band from {settings.n_draft} tokens"
        case ControllerName.AUTO:
            rule = "as many tokens as pay"
    return f"{settings.predictor_title}, {rule}"
