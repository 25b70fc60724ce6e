"""The keys that can be pressed now, in one line at the bottom."""

from dataclasses import dataclass

from textual import events

from app.render.lines import Line, Run, width_of
from app.widgets.ink import InkLines

HELP_ID = "app-help"


@dataclass(frozen=True, slots=True)
class ShownKey:
    """A key as the bar shows it."""

    key: str
    """As it is pressed."""
    name: str
    """As it is written."""
    description: str

    @property
    def runs(self) -> Line:
        """The key and what it does."""
        return (Run(f" {self.name}", "accent"), Run(f" {self.description} ", "muted"))

    @property
    def number(self) -> int | None:
        """Of a function key."""
        is_function = self.key[0] == "f" and self.key[1:].isdecimal()
        return int(self.key[1:]) if is_function else None


class KeyBar(InkLines):
    """Shows the live bindings that ask to be shown; a click presses the key.

    Textual's footer is a widget for each key, all of which are laid out with every frame.
    """

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._shown: list[ShownKey] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.update())

    def on_resize(self) -> None:
        super().on_resize()
        self.update()

    def update(self) -> None:
        """Show what the focused widget and the screen bind now."""
        if not self.size.width:
            return  # it is called again with a width
        self._shown = fitting(self._keys(), self.size.width, self._help_key())
        self.show([tuple(run for shown in self._shown for run in shown.runs)])

    def on_click(self, event: events.Click) -> None:
        end = 0
        for shown in self._shown:
            end += width_of(shown.runs)
            if event.x < end:
                self.app.simulate_key(shown.key)
                return

    def _help_key(self) -> ShownKey:
        """The key of the help, which works over every screen, under the name of what it is here."""
        for key, active in self.screen.active_bindings.items():
            if active.binding.id == HELP_ID:
                return ShownKey(key, self.app.get_key_display(active.binding), "more")
        return ShownKey("f1", "f1", "more")

    def _keys(self) -> list[ShownKey]:
        shown: list[ShownKey] = []
        for key, active in self.screen.active_bindings.items():
            if active.binding.show and active.enabled:
                name = self.app.get_key_display(active.binding)
                shown.append(ShownKey(key, name, active.binding.description))
        return _in_order(shown)


def fitting(keys: list[ShownKey], width: int, more: ShownKey) -> list[ShownKey]:
    """The keys that have room; where some have none, `more` at the end shows the rest.

    Function keys go first, the last of them before the others, and esc stays.
    """
    if _width(keys) <= width:
        return keys
    kept = [shown for shown in keys if shown.key != more.key]
    while kept and _width([*kept, more]) > width:
        kept.remove(_least(kept))
    return [*kept, more]


def _least(keys: list[ShownKey]) -> ShownKey:
    functions = [shown for shown in keys if shown.number is not None]
    others = [shown for shown in keys if shown.key != "escape"]
    return (functions or others or keys)[-1]


def _width(keys: list[ShownKey]) -> int:
    return sum(width_of(shown.runs) for shown in keys)


def _in_order(keys: list[ShownKey]) -> list[ShownKey]:
    """Put function keys in their order where they stand; a focused text area moves some ahead."""
    places = [place for place, shown in enumerate(keys) if shown.number is not None]
    ordered = sorted((keys[place] for place in places), key=lambda shown: shown.number or 0)
    for place, shown in zip(places, ordered, strict=True):
        keys[place] = shown
    return keys
