"""All settings with search and explanations; a list of themes with a preview."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static, TextArea

from app.bindings import Action
from app.config import SettingsError, UserSettings, Value
from app.render.settings import SettingValue, detail_lines, setting_line, title_line, value_of
from app.sanitize import visible
from app.screens.dialogs import PickScreen, ask, ask_line, confirm
from app.setting_definitions import AT_ONCE, SECTIONS, SettingDefinition, definitions
from app.widgets.ink import LinesView
from app.widgets.select_list import Row, SelectList

Place = tuple[str, str]
"""Section and key of a setting."""

LOW = 32
"""Rows of the terminal below which the dialog has no margins."""
NEW_PROMPT: Place = ("prompts", "")
THEME: Place = ("ui", "theme")
PROMPT_MEANING = "A saved system prompt; select it with ctrl+s in a chat."
ALLOWED_KEYS = "a key such as f8 or ctrl+t, several keys separated by commas, or none"
HINT = "enter changes · del restores the default · type to search · esc closes"


class SettingsScreen(PickScreen[Place]):
    """Every setting by section, and the facts of the highlighted one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("delete", "reset", "Default", id="settings-default",
                tooltip="Restore the default: remove the setting from the file"),
        Binding("f11", "dismiss(None)", "Close", id="settings-close", show=False,
                tooltip="Close the settings"),
    ]  # fmt: skip

    def __init__(
        self,
        settings: UserSettings,
        actions: Callable[[], Sequence[Action]],
        themes: Sequence[str],
        changed: Callable[[str, str], object],
    ) -> None:
        """List settings; `changed` is called with table and key of each changed setting."""
        super().__init__(f"settings  {visible(str(settings.path))}", noun="setting", hint=HINT)
        self._settings = settings
        self._actions = {action.id: action for action in actions()}
        self._themes = themes
        self._changed = changed
        self._values: dict[Place, SettingValue] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog -wide", id="settings"):
            yield Static(self._title, classes="title", markup=False)
            yield SelectList(id="settings-rows")
            yield LinesView(below=None, id="settings-detail")
            yield Static("", id="plan-pick-note", classes="hint", markup=False)
            yield Static(HINT, classes="hint", markup=False)

    def on_mount(self) -> None:
        self.set_class(self.app.size.height < LOW, "-low")
        super().on_mount()
        self._read()

    def on_resize(self) -> None:
        self.set_class(self.app.size.height < LOW, "-low")

    def on_select_list_marked(self) -> None:
        self._describe()

    def _describe(self) -> None:
        place = self.query_one(SelectList).marked_key
        value = self._values.get(place) if isinstance(place, tuple) else None
        self.query_one(LinesView).present(partial(detail_lines, value))

    def found(self, words: Sequence[str]) -> list[Row[Place]]:
        """The settings found: those with the words in their names first."""
        rows = super().found(words)
        named = [row for row in rows if all(word in " ".join(row.key) for word in words)]
        return [*named, *(row for row in rows if row not in named)] if words else rows

    def _narrow(self, mark: Place | None) -> None:
        super()._narrow(mark)
        self._describe()

    # --- the rows ---

    def _read(self) -> None:
        """Show all settings as they are now."""
        loaded, beside = self._settings.loaded, self._beside()
        self._values = {
            (each.section, each.key): value_of(each, loaded, beside) for each in self._defined()
        }
        problem = "" if loaded.faults else loaded.problem or ""
        self.show_all([*self._rows()], note=problem)

    def _defined(self) -> Iterator[SettingDefinition]:
        settings = self._settings.settings
        for section in SECTIONS:
            yield from (each for each in definitions() if each.section == section)
        for name in settings.prompts:
            yield _prompt(name)
        for action in self._actions.values():
            keys = ", ".join(action.keys)
            yield SettingDefinition("keys", action.id, action.meaning, keys, allowed=ALLOWED_KEYS)

    def _rows(self) -> Iterator[Row[Place]]:
        for section, title in SECTIONS.items():
            yield Row((section, "*"), partial(title_line, title), is_enabled=False)
            for place, value in self._values.items():
                if place[0] == section:
                    yield Row(place, partial(setting_line, value), words=value.words)
            if section == NEW_PROMPT[0]:
                line = partial(title_line, "+ a new system prompt")
                yield Row(NEW_PROMPT, line, words="new system prompt")

    def _beside(self) -> dict[Place, tuple[str, str]]:
        wanted = self._settings.settings.ui.theme
        if self.app.theme == wanted:
            return {}
        is_there = wanted in self._themes
        why = "for this session" if is_there else f"theme {visible(wanted)} does not exist"
        return {THEME: (self.app.theme, why)}

    # --- changes ---

    def picked(self, key: Place) -> None:
        if key == NEW_PROMPT:
            ask_line(self, "Name of the system prompt", "", self._edit_prompt)
        elif key == THEME:
            ask(self, ThemeScreen(self._themes, self.app), partial(self._change, THEME))
        elif choices := self._values[key].definition.choices:
            self._pick(key, choices)
        else:
            self._edit(self._values[key].definition, self._values[key].text)

    def action_reset(self) -> None:
        place = self.marked
        if place is None or place == NEW_PROMPT or place not in self._values:
            return
        if place[0] == "prompts":
            question = f"Delete the system prompt {visible(place[1])}?"
            confirm(self, question, partial(self._change, place, None))
        else:
            self._change(place, None)

    def _change(self, place: Place, value: Value | None) -> None:
        self._settings.change(*place, value)
        self._changed(*place)
        self._read()

    def _edit(self, definition: SettingDefinition, text: str) -> None:
        place = (definition.section, definition.key)
        ask(self, EditScreen(definition, text), lambda t: self._change(place, definition.read(t)))

    def _edit_prompt(self, name: str) -> None:
        self._edit(_prompt(name), self._settings.settings.prompts.get(name, ""))

    def _pick(self, place: Place, choices: Sequence[str]) -> None:
        value = self._values[place]
        definition = value.definition
        rows = [Row(each, partial(title_line, each), words=each) for each in choices]
        title, note = f"[{place[0]}] {place[1]}", definition.meaning
        screen = PickScreen(title, rows, note=note, mark=value.text, classes="-short")
        ask(self, screen, lambda choice: self._change(place, definition.read(choice)))


def _prompt(name: str) -> SettingDefinition:
    return SettingDefinition("prompts", name, PROMPT_MEANING, None, is_long=True)


class EditScreen(ModalScreen[str | None]):
    """Asks for a value and shows its faults while it is typed."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", id="edit-cancel", tooltip="Cancel"),
        Binding("ctrl+s", "save", "Save", id="edit-save", priority=True,
                tooltip="Save the value in the settings"),
    ]  # fmt: skip

    def __init__(self, definition: SettingDefinition, text: str) -> None:
        super().__init__()
        self._definition = definition
        self._text = text

    def compose(self) -> ComposeResult:
        each = self._definition
        with Vertical(classes="dialog -wide"):
            yield Static(f"[{each.section}] {visible(each.key)}", classes="title", markup=False)
            yield Static(visible(each.meaning), markup=False)
            if each.is_long:
                yield TextArea(
                    self._text, id="value-text", tab_behavior="focus", highlight_cursor_line=False
                )
            else:
                yield Input(self._text, id="value")
            facts = f"{each.allowed} · empty: the default" if each.allowed else ""
            yield Static(facts or "empty: the default", classes="hint", markup=False)
            yield Static("", id="problem", markup=False)
            key = "ctrl+s saves" if each.is_long else "enter saves"
            effect = "" if each.effect == AT_ONCE else f" · takes effect {each.effect}"
            yield Static(f"{key} · esc cancels{effect}", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one("#value-text" if self._definition.is_long else "#value").focus()

    @property
    def text(self) -> str:
        """The typed text."""
        if self._definition.is_long:
            return self.query_one(TextArea).text
        return self.query_one(Input).value

    def on_input_changed(self) -> None:
        self._problem()

    def on_text_area_changed(self) -> None:
        self._problem()

    def on_input_submitted(self) -> None:
        self.action_save()

    def action_save(self) -> None:
        if self._problem():
            self.app.bell()
        else:
            self.dismiss(self.text)

    def _problem(self) -> str:
        """Show and return the fault of the text."""
        problem = ""
        try:
            self._definition.read(self.text)
        except SettingsError as error:
            problem = str(error)
        self.query_one("#problem", Static).update(visible(problem))
        return problem


class ThemeScreen(PickScreen[str]):
    """The themes; the highlighted theme is applied at once, and undone by esc."""

    def __init__(self, names: Sequence[str], app: App[Any]) -> None:
        self._before = app.theme
        rows = [
            Row(name, partial(title_line, _described(name, app)), words=name.lower())
            for name in names
        ]
        super().__init__("themes", rows, noun="theme", mark=app.theme, classes="-short")

    def on_select_list_marked(self) -> None:
        if self.marked is not None:
            self.app.theme = self.marked

    def picked(self, key: str) -> None:
        self.app.theme = key
        super().picked(key)

    def action_close(self) -> None:
        self.app.theme = self._before
        super().action_close()


def _described(name: str, app: App[Any]) -> str:
    theme = app.available_themes[name]
    kind = "the terminal's 16 colours" if theme.ansi else "dark" if theme.dark else "light"
    return f"{visible(name):<24}{kind}"
