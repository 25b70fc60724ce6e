"""Bars of one line over the whole width: a title, tabs, the keys that can be pressed now."""

from collections.abc import Callable
from dataclasses import dataclass

from textual import events
from textual.message import Message
from textual.reactive import reactive

from app.render.lines import EMPTY, Line, Run, width_of
from app.widgets.ink import InkLines

HELP_ID = "app-help"


class TitleBar(InkLines):
    """A line over the whole width."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self._render_line: Callable[[int], Line] = lambda _: EMPTY

    def present(self, render: Callable[[int], Line]) -> None:
        """Show another line, made for the width that there is."""
        self._render_line = render
        if self.size.width:
            self.show([render(self.size.width)])

    def on_resize(self) -> None:
        super().on_resize()
        self.present(self._render_line)


class TabStrip(InkLines):
    """Names side by side, the active one marked by shape and colour."""

    active: reactive[int] = reactive(0, layout=False, init=False)

    @dataclass
    class Chosen(Message):
        """Another tab became active."""

        index: int

    def __init__(
        self,
        names: tuple[str, ...],
        key: str,
        *,
        id: str | None = None,  # noqa: A002  Textual's own name
    ) -> None:
        """Tabs of which the first is active.

        Args:
            names: The tabs.
            key: Stands behind them: the key that goes to the next one.
            id: Its name in the style sheets.
        """
        super().__init__(id=id)
        self.names = names
        self._key = key

    def on_mount(self) -> None:
        self._paint()

    def watch_active(self, active: int) -> None:
        self._paint()
        self.post_message(self.Chosen(active))

    def next(self) -> None:
        """Go to the next tab, from the last to the first."""
        self.active = (self.active + 1) % len(self.names)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for index, part in enumerate(self._tabs()):
            end += width_of((part,))
            if event.x < end:
                self.active = index
                return

    def _tabs(self) -> list[Run]:
        return [
            Run(f" [{name}] " if i == self.active else f"  {name}  ",
                "accent" if i == self.active else "muted")
            for i, name in enumerate(self.names)
        ]  # fmt: skip

    def _paint(self) -> None:
        self.show([(*self._tabs(), Run(f"  {self._key}", "muted"))])


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
    """Function keys in their order, where they stand; a focused text area moves some ahead."""
    indices = [index for index, shown in enumerate(keys) if shown.number is not None]
    ordered = sorted((keys[index] for index in indices), key=lambda shown: shown.number or 0)
    for index, shown in zip(indices, ordered, strict=True):
        keys[index] = shown
    return keys
