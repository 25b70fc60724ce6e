"""Available keys and commands, for the help, the palette and the composer.

Every action that has a key is a command, called `area: Verb` in the palette after the id of its
binding, and `/name` in the composer. Choices without a key are commands too.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from textual.app import App
from textual.binding import Binding, BindingsMap
from textual.command import CommandList, CommandPalette
from textual.dom import DOMNode
from textual.screen import Screen

from app import screens
from app.bindings import SLASH_NAMES, Action, Command, with_keys
from app.chat.snapshot import NO_MODEL
from app.render.help import KeyHelp, KeySection
from app.render.transcript import TINT_MEANINGS, TINT_MODES
from app.screens.chat import UNSAVED, ChatScreen
from engine.configuration import ControllerName, PredictorName


class Palette(CommandPalette):
    """Textual's palette, whose list takes keys only once it has a place on the screen.

    Textual 8.2.8 looks for the lines of a page in a list that was not laid out, and fails.
    """

    def _action_command_list(self, action: str) -> None:
        if self.query_one(CommandList).scrollable_content_region:
            super()._action_command_list(action)


Keys = Mapping[str, str]
"""The user's own keys by binding id."""

WIDGET_TITLES = {
    "ChatList": "in the list of chats",
    "ChatTable": "in the list of chats",
    "FindBar": "in the search box of a chat",
    "LinesView": "in a text view",
    "OptionList": "in the plan settings",
    "PlanTable": "in the table of K/V types",
    "SelectList": "in a list",
}
"""Headings in the help for widgets whose class name has several words."""


def every_action() -> list[Action]:
    """Actions of all screens, which the settings can bind to other keys, ordered by id.

    The screens are imported for it.
    """
    for module in pkgutil.walk_packages(screens.__path__, f"{screens.__name__}."):
        importlib.import_module(module.name)
    found: dict[str, Action] = {}
    for kind in _own_kinds(DOMNode):
        for each in BindingsMap(kind.__dict__.get("BINDINGS", ())).key_to_bindings.values():
            for key in each:
                if key.id:
                    found[key.id] = _with_key(found.get(key.id), key, kind.__name__)
    return [found[name] for name in sorted(found)]


def _with_key(action: Action | None, key: Binding, owner: str) -> Action:
    if action is None:
        meaning = key.tooltip or key.description
        return Action(key.id or "", (key.key,), key.description, meaning, frozenset({owner}))
    keys = tuple(dict.fromkeys((*action.keys, key.key)))
    return replace(action, keys=keys, owners=action.owners | {owner})


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


def commands_of(app: App[Any], screen: Screen[Any], keymap: Keys) -> Iterator[Command]:
    """Every action that has a key on a screen, then the choices of the chat without one."""
    obstacles = screen.obstacles() if isinstance(screen, ChatScreen) else {}
    with_words = {"chat-find": screen.action_find} if isinstance(screen, ChatScreen) else {}
    seen: set[str] = set()
    for node in (*own_nodes(screen), app):
        for binding in own_bindings(node, keymap):
            if binding.id is None or binding.id in seen:
                continue
            seen.add(binding.id)
            name, *aliases = SLASH_NAMES.get(binding.id, (binding.id,))
            yield Command(
                name,
                f"{binding.id.split('-')[0]}: {binding.description}",
                binding.tooltip or binding.description,
                partial(app.run_action, binding.action, node),
                tuple(aliases),
                app.get_key_display(binding),
                with_keys(obstacles.get(binding.id, ""), app),
                with_words.get(binding.id),
            )
    if isinstance(screen, ChatScreen):
        yield from _chat_commands(screen)


def _chat_commands(chat: ChatScreen) -> Iterator[Command]:
    """Changes of the shown chat; predictors, controllers and token colours by their names."""
    loaded, shown, chats = chat.conversation.loaded, chat.conversation.history.chat, chat.sidebar
    unsaved = "" if shown else UNSAVED
    for name, what, run, run_with in (
        ("rename", "Give this chat a title", chats.ask_title, chats.rename),
        ("folder", "Put this chat into a folder", chats.ask_folder, chats.put_into),
        ("pin", "Pin this chat to the top of the list, or unpin it", chats.pin, None),
    ):
        yield Command(
            name,
            f"chat: {name.capitalize()}",
            what,
            partial(run, shown),
            obstacle=unsaved,
            run_with=run_with and partial(run_with, shown),
        )
    yield Command(
        "draft",
        "speculation: Draft model",
        "Choose a draft model for the loaded model",
        partial(chat.run_action, "app.draft"),
        obstacle="" if chat.conversation.configuration else NO_MODEL,
    )
    for name in map(PredictorName, loaded.predictors if loaded else ()):
        yield Command(
            f"predictor {name.value}",
            f"speculation: Predictor {name.value}",
            "Switch the predictor of drafts",
            partial(chat.use_speculation, predictor=name),
        )
    for rule in ControllerName:
        yield Command(
            f"rule {rule.value}",
            f"speculation: Draft length {rule.value}",
            "Switch the draft length: fixed or adaptive (auto)",
            partial(chat.use_speculation, controller=rule),
        )
    for mode in TINT_MODES:
        yield Command(
            f"colours {mode}",
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
    if isinstance(node, App):
        return "everywhere"
    return WIDGET_TITLES.get(type(node).__name__, f"in the {type(node).__name__.lower()}")
