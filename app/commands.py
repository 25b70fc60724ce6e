"""The command palette: every bound action, and what has no key, as `area: Verb`."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand
from textual.markup import escape
from textual.screen import Screen

from app.live_keys import own_bindings, own_nodes
from app.render.transcript import TINT_MEANINGS, TINT_MODES
from app.sanitize import visible
from app.screens.chat_actions import ChatActions
from engine.configuration import ControllerName, PredictorName

if TYPE_CHECKING:
    from app.application import KvchatApp


def chat_commands(app: "KvchatApp", screen: Screen[object]) -> Iterator[SystemCommand]:
    """The commands of a screen and of the application."""
    yield from _bound(app, screen)
    if isinstance(screen, ChatActions):
        yield from _speculation(screen)
        yield from _tints(screen)
    for name in sorted(app.available_themes, key=lambda n: (not n.startswith("kvchat"), n)):
        shown = escape(visible(name))
        yield SystemCommand(f"theme: {shown}", "Use this theme", partial(app.use_theme, name))
    yield SystemCommand("screen: Save picture", "Write the screen to an SVG file", app.save_picture)
    yield SystemCommand("app: Quit", "Save and leave", app.action_quit)


def _bound(app: "KvchatApp", screen: Screen[object]) -> Iterator[SystemCommand]:
    seen: set[str] = set()
    for node in own_nodes(screen):
        for binding in own_bindings(node, app.services.keymap):
            if binding.id is None or binding.id in seen:
                continue
            seen.add(binding.id)
            area = binding.id.split("-")[0]
            key = app.get_key_display(binding)
            yield SystemCommand(
                f"{area}: {binding.description}",
                f"{binding.tooltip or binding.description}  ({key})",
                partial(app.run_action, binding.action, node),
            )


def _tints(screen: ChatActions) -> Iterator[SystemCommand]:
    for mode in TINT_MODES:
        yield SystemCommand(
            f"transcript: Token colours {mode}",
            TINT_MEANINGS[mode].capitalize(),
            partial(screen.set_tint, mode),
        )


def _speculation(screen: ChatActions) -> Iterator[SystemCommand]:
    names = screen.controller.loaded.predictors if screen.controller.loaded else ()
    for name in map(PredictorName, names):
        yield SystemCommand(
            f"speculation: Use {name.value}",
            "Switch the source of drafts",
            partial(screen.set_speculation, predictor=name),
        )
    for rule in ControllerName:
        yield SystemCommand(
            f"speculation: Rule {rule.value}",
            "Switch what sets the draft length",
            partial(screen.set_speculation, controller=rule),
        )
