"""What can be pressed now and what can be commanded: for the help and the command palette.

A command is called `area: Verb`, after the id of its binding.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode
from textual.screen import Screen

from app import screens
from app.render.help import KeyHelp, KeySection
from app.render.transcript import TINT_MEANINGS, TINT_MODES
from app.screens.chat import ChatScreen
from engine.configuration import ControllerName, PredictorName

Keys = Mapping[str, str]
"""The user's own keys by binding id."""


def every_binding_id() -> list[str]:
    """The ids of all keys on all screens, which the settings may bind anew."""
    for module in pkgutil.walk_packages(screens.__path__, f"{screens.__name__}."):
        importlib.import_module(module.name)
    declared = [key for kind in _own_kinds(DOMNode) for key in kind.__dict__.get("BINDINGS", ())]
    return sorted({key.id for key in declared if isinstance(key, Binding) and key.id})


def own_bindings(node: DOMNode, keymap: Keys) -> list[Binding]:
    """The bindings that kvchat's classes declare for a node, with the user's keys in place."""
    declared = [
        binding
        for kind in type(node).__mro__
        if kind.__module__.startswith("app.")
        for binding in kind.__dict__.get("BINDINGS", ())
    ]
    bindings = BindingsMap(declared)
    bindings.apply_keymap(dict(keymap))
    return [binding for _, binding in bindings]


def own_nodes(screen: Screen[Any]) -> Iterator[DOMNode]:
    """The screen and one widget of each of kvchat's classes on it."""
    seen: set[type] = set()
    for node in (screen, *screen.query("*")):
        if type(node) not in seen and type(node).__module__.startswith("app."):
            seen.add(type(node))
            yield node


def key_sections(app: App[Any], screen: Screen[Any], keymap: Keys) -> list[KeySection]:
    """The keys of the screen, of its widgets, and of the application."""
    sections: list[KeySection] = []
    for node in (*own_nodes(screen), app):
        keys = _by_id(app, own_bindings(node, keymap))
        if keys:
            sections.append(KeySection(_title(node, screen), keys))
    return sections


def key_commands(app: App[Any], screen: Screen[Any], keymap: Keys) -> Iterator[SystemCommand]:
    """Every action of the screen and its widgets that has a key."""
    seen: set[str] = set()
    for node in own_nodes(screen):
        for binding in own_bindings(node, keymap):
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


def chat_commands(chat: ChatScreen) -> Iterator[SystemCommand]:
    """Predictors, rules and token colours, each by its name."""
    loaded = chat.controller.loaded
    for name in map(PredictorName, loaded.predictors if loaded else ()):
        yield SystemCommand(
            f"speculation: Use {name.value}",
            "Switch the source of drafts",
            partial(chat.set_speculation, predictor=name),
        )
    for rule in ControllerName:
        yield SystemCommand(
            f"speculation: Rule {rule.value}",
            "Switch what sets the draft length",
            partial(chat.set_speculation, controller=rule),
        )
    for mode in TINT_MODES:
        yield SystemCommand(
            f"transcript: Token colours {mode}",
            TINT_MEANINGS[mode].capitalize(),
            partial(chat.set_tint, mode),
        )


def _own_kinds(kind: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for inner in kind.__subclasses__():
        if inner.__module__.startswith("app."):
            yield inner
        yield from _own_kinds(inner)


def _by_id(app: App[Any], bindings: list[Binding]) -> tuple[KeyHelp, ...]:
    """Keys of the same binding as one entry."""
    names: dict[str, list[str]] = {}
    last: dict[str, Binding] = {}
    for binding in bindings:
        key = binding.id or binding.action
        names.setdefault(key, []).append(app.get_key_display(binding))
        last[key] = binding
    return tuple(
        KeyHelp(", ".join(names[key]), binding.tooltip or binding.description, binding.id or "")
        for key, binding in last.items()
    )


def _title(node: DOMNode, screen: Screen[Any]) -> str:
    if node is screen:
        return "this screen"
    return "everywhere" if isinstance(node, App) else f"in the {type(node).__name__.lower()}"
