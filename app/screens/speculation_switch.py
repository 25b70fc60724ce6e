"""Who drafts, by which rule and how far: switched with a key, remembered for the next start."""

from dataclasses import replace

from textual.screen import Screen

from app.chat.conversation import Conversation
from app.config import UserSettings
from app.screens.dialogs import report
from engine.configuration import MAX_DRAFT, ControllerName, PredictorName, SpeculationSettings
from engine.errors import EngineError


class SpeculationSwitch:
    """Changes the settings of the engine, and describes them."""

    def __init__(
        self, screen: Screen[None], conversation: Conversation, settings: UserSettings
    ) -> None:
        """Switch the settings of a conversation.

        Args:
            screen: Says what is on now.
            conversation: Hands them to the engine.
            settings: Remember them.
        """
        self._screen = screen
        self._conversation = conversation
        self._settings = settings

    def next_predictor(self) -> None:
        """Switch to the next source of drafts that there is."""
        loaded = self._conversation.loaded
        if loaded is None:
            self._screen.notify("No model is loaded.")
            return
        now = self._conversation.speculation.predictor
        # A server has none to choose from, and says so when it is asked to switch.
        names = [PredictorName(name) for name in loaded.predictors] or [now]
        index = names.index(now) + 1 if now in names else 0
        self.use(predictor=names[index % len(names)])

    def next_controller(self) -> None:
        """Switch to the next rule of the draft length."""
        names = list(ControllerName)
        index = names.index(self._conversation.speculation.controller) + 1
        self.use(controller=names[index % len(names)])

    def longer(self, step: int) -> None:
        """Make drafts longer or shorter, between 1 and the longest that there may be."""
        n_draft = self._conversation.speculation.n_draft + step
        self.use(n_draft=min(max(n_draft, 1), MAX_DRAFT))

    def use(
        self,
        *,
        predictor: PredictorName | None = None,
        controller: ControllerName | None = None,
        n_draft: int | None = None,
    ) -> None:
        """Change what is not None, remember it, and say what is on now."""
        text = self._change(predictor, controller, n_draft)
        try:
            self._remember(predictor, controller, n_draft)
        except EngineError as error:
            report(self._screen, error)
        self._screen.notify(text, title="Speculation", timeout=2)

    def _change(
        self,
        predictor: PredictorName | None,
        controller: ControllerName | None,
        n_draft: int | None,
    ) -> str:
        """Change what is not None; gives what is on now, in words."""
        old = self._conversation.speculation
        new = replace(
            old,
            predictor=predictor or old.predictor,
            controller=controller or old.controller,
            n_draft=n_draft or old.n_draft,
        )
        self._conversation.set_speculation(new)
        return describe(new)

    def _remember(
        self,
        predictor: PredictorName | None,
        controller: ControllerName | None,
        n_draft: int | None,
    ) -> None:
        """Begin with what is not None at the next start; a predictor that needs a file is not kept.

        Raises:
            EngineError: It cannot be saved.
        """
        is_usual = predictor not in (PredictorName.DRAFT, PredictorName.CUSTOM)
        values = {
            "predictor": predictor.value if predictor and is_usual else None,
            "controller": controller.value if controller else None,
            "n_draft": n_draft,
        }
        for key, value in values.items():
            if value is not None:
                self._settings.change("speculation", key, value)


def describe(settings: SpeculationSettings) -> str:
    """The settings in words: `lookup, as many tokens as pay`."""
    if settings.predictor is PredictorName.OFF:
        return "off: plain decoding"
    match settings.controller:
        case ControllerName.FIXED:
            rule = f"fixed at {settings.n_draft} tokens"
        case ControllerName.AUTO:
            rule = "auto draft length"
    return f"{settings.predictor}, {rule}"
