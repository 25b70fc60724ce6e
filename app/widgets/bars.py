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

    _render_line: Callable[[int], Line] = staticmethod(lambda _: EMPTY)

    def present(self, render: Callable[[int], Line]) -> None:
        self._render_line = render
        if self.size.width:
            self.show([render(self.size.width)])

    def on_resize(self) -> None:
        super().on_resize()
        self.present(self._render_line)


class TabStrip(InkLines):
    """Names side by side, the active one marked by shape and colour; the first one at first.

    `key` is the name of the key that goes to the next tab.
    """

    active: reactive[int] = reactive(0, layout=False, init=False)

    @dataclass
    class Chosen(Message):
        """Another tab became active."""

        index: int

    def __init__(self, names: tuple[str, ...], key: str, *, id: str | None = None) -> None:  # noqa: A002  Textual's own name
        super().__init__(id=id)
        self.names = names
        self._key = key

    def on_mount(self) -> None:
        self._paint()

    def watch_active(self, active: int) -> None:
        self._paint()
        self.post_message(self.Chosen(active))

    def next(self) -> None:
        self.active = (self.active + 1) % len(self.names)

    def on_click(self, event: events.Click) -> None:
        index = _index_at(event.x, [(tab,) for tab in self._tabs()])
        if index is not None:
            self.active = index

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
    """Textual's name of the key."""
    name: str
    description: str

    @property
    def runs(self) -> Line:
        return (Run(f" {self.name}", "accent"), Run(f" {self.description} ", "muted"))

    @property
    def number(self) -> int | None:
        is_function = self.key[0] == "f" and self.key[1:].isdecimal()
        return int(self.key[1:]) if is_function else None


class KeyBar(InkLines):
    """Shows the live bindings that ask to be shown; a click presses the key.

    Textual's footer is a widget for each key, all of which are laid out with every frame.
    """

    _shown: tuple[ShownKey, ...] = ()

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.update())

    def on_resize(self) -> None:
        super().on_resize()
        self.update()

    def update(self) -> None:
        if not self.size.width:
            return  # it is called again with a width
        more = ShownKey("f1", "f1", "more")
        keys: dict[str | None, ShownKey] = {}
        for key, active in self.screen.active_bindings.items():
            name = self.app.get_key_display(active.binding)
            if active.binding.id == HELP_ID:
                more = ShownKey(key, name, "more")
            if active.binding.show and active.enabled:  # the first key of each binding
                keys.setdefault(active.binding.id, ShownKey(key, name, active.binding.description))
        self._shown = tuple(fitting(_in_order([*keys.values()]), self.size.width, more))
        self.show([tuple(run for shown in self._shown for run in shown.runs)])

    def on_click(self, event: events.Click) -> None:
        index = _index_at(event.x, [shown.runs for shown in self._shown])
        if index is not None:
            self.app.simulate_key(self._shown[index].key)


def _index_at(x: int, parts: list[Line]) -> int | None:
    """The index of the part at a column; None after the last."""
    end = 0
    for index, part in enumerate(parts):
        end += width_of(part)
        if x < end:
            return index
    return None


def fitting(keys: list[ShownKey], width: int, more: ShownKey) -> list[ShownKey]:
    """The keys that fit; if some do not, `more` at the end shows the rest.

    The last function key is left out first, then the last of the others, and esc stays.
    """
    if _width(keys) <= width:
        return keys
    left = [shown for shown in keys if shown.key != more.key]
    while left and _width([*left, more]) > width:
        functions = [shown for shown in left if shown.number is not None]
        others = [shown for shown in left if shown.key != "escape"]
        left.remove((functions or others or left)[-1])
    return [*left, more]


def _width(keys: list[ShownKey]) -> int:
    return sum(width_of(shown.runs) for shown in keys)


def _in_order(keys: list[ShownKey]) -> list[ShownKey]:
    """Function keys in their order, where they stand; a focused text area moves some ahead."""
    ordered = iter(sorted((k for k in keys if k.number is not None), key=lambda k: k.number or 0))
    return [key if key.number is None else next(ordered) for key in keys]
