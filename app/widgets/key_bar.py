"""The keys that can be pressed now, in one line at the bottom."""

from textual import events

from app.render.lines import Run, width_of
from app.widgets.ink import InkLines


class KeyBar(InkLines):
    """Shows the live bindings that ask to be shown; a click presses the key.

    Textual's footer is a widget for each key, all of which are laid out with every frame.
    """

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.update())

    def on_resize(self) -> None:
        super().on_resize()
        self.update()

    def update(self) -> None:
        """Show what the focused widget and the screen bind now."""
        line: list[Run] = []
        for _, key, description in self._keys():
            part = (Run(f" {key}", "accent"), Run(f" {description} ", "muted"))
            if width_of((*line, *part)) > self.size.width:
                break
            line += part
        self.show([tuple(line)])

    def on_click(self, event: events.Click) -> None:
        end = 0
        for pressed, key, description in self._keys():
            end += width_of((Run(f" {key} {description} "),))
            if event.x < end:
                self.app.simulate_key(pressed)
                return

    def _keys(self) -> list[tuple[str, str, str]]:
        """Key, how it is written, and what it does."""
        shown: list[tuple[str, str, str]] = []
        for key, active in self.screen.active_bindings.items():
            if active.binding.show and active.enabled:
                name = self.app.get_key_display(active.binding)
                shown.append((key, name, active.binding.description))
        return _in_order(shown)


def _in_order(keys: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Put function keys in their order where they stand; a focused text area moves some ahead."""
    places = [place for place, (key, *_) in enumerate(keys) if _number(key) is not None]
    ordered = sorted((keys[place] for place in places), key=lambda each: _number(each[0]) or 0)
    for place, each in zip(places, ordered, strict=True):
        keys[place] = each
    return keys


def _number(key: str) -> int | None:
    """The number of a function key."""
    return int(key[1:]) if key[0] == "f" and key[1:].isdecimal() else None
