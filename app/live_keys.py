"""The keys that a screen and its widgets bind now, for the help and the command palette."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from textual.app import App
from textual.binding import Binding, BindingsMap
from textual.dom import DOMNode
from textual.screen import Screen

from app import screens
from app.render.help import KeyHelp, KeySection


def every_binding_id() -> list[str]:
    """The ids of all keys on all screens, which the settings may bind anew."""
    for module in pkgutil.walk_packages(screens.__path__, f"{screens.__name__}."):
        importlib.import_module(module.name)
    declared = [key for kind in _own_kinds(DOMNode) for key in kind.__dict__.get("BINDINGS", ())]
    return sorted({key.id for key in declared if isinstance(key, Binding) and key.id})


def _own_kinds(kind: type[DOMNode]) -> Iterator[type[DOMNode]]:
    for inner in kind.__subclasses__():
        if inner.__module__.startswith("app."):
            yield inner
        yield from _own_kinds(inner)


def own_bindings(node: DOMNode, keymap: Mapping[str, str]) -> list[Binding]:
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


def own_nodes(screen: Screen[object]) -> Iterator[DOMNode]:
    """The screen and one widget of each of kvchat's classes on it."""
    seen: set[type] = set()
    for node in (screen, *screen.query("*")):
        if type(node) not in seen and type(node).__module__.startswith("app."):
            seen.add(type(node))
            yield node


def key_sections(
    app: App[None], screen: Screen[object], keymap: Mapping[str, str]
) -> list[KeySection]:
    """The keys of the screen, of its widgets, and of the application."""
    sections: list[KeySection] = []
    for node in (*own_nodes(screen), app):
        keys = _by_id(app, own_bindings(node, keymap))
        if keys:
            sections.append(KeySection(_title(node, screen), keys))
    return sections


def _by_id(app: App[None], bindings: list[Binding]) -> tuple[KeyHelp, ...]:
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


def _title(node: DOMNode, screen: Screen[object]) -> str:
    if node is screen:
        return "this screen"
    return "everywhere" if isinstance(node, App) else f"in the {type(node).__name__.lower()}"
