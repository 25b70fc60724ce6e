"""The keys of the chat, the user's own keys from `[keys]` of the settings, commands by name.

An id is `area-name`; the settings rebind keys by it, the palette shows `area: Description`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from textual.binding import Binding, BindingType
from textual.keys import Keys, _character_to_key, key_to_character

from engine.errors import shown
from engine.validation import did_you_mean


def _key(
    key: str, action: str, text: str, name: str, tooltip: str, *, show: bool = False
) -> Binding:
    # A text area has own meanings for some of these keys; on this screen ours come first.
    is_first = key == "ctrl+f" or (key[0] == "f" and key[1:].isdecimal())
    return Binding(key, action, text, id=name, tooltip=tooltip, show=show, priority=is_first)


CHAT_KEYS: list[BindingType] = [
    _key("f1", "app.help", "Help", "app-help", "Show all keys and a glossary", show=True),
    _key("f2", "app.planner", "Planner", "model-plan",
         "Compute the memory and speed of a configuration; find settings that fit",
         show=True),
    _key("f3", "app.presets", "Presets", "preset-list",
         "List, load and export saved configurations",
         show=True),
    _key("f4", "app.compare", "Compare", "compare-open",
         "Answer one prompt with and without drafts, side by side", show=True),
    _key("f5", "next_predictor", "Predictor", "speculation-predictor",
         "Switch the predictor of drafts: off, lookup, suffix, combined, draft model", show=True),
    _key("f6", "app.cache", "Cache", "cache-open",
         "Pin, delete or verify saved states in RAM and on disk", show=True),
    _key("escape", "stop", "Stop", "reply-stop",
         "Stop the reply and keep its text, or stop loading a model; if neither is running, go to "
         "the composer",
         show=True),
    _key("ctrl+n", "new_chat", "New", "chat-new", "Begin a new chat", show=True),
    _key("ctrl+l", "chats", "Chats", "chat-list",
         "Open, search, rename, archive, export or delete a chat", show=True),
    _key("ctrl+f", "search", "Search", "chat-search", "Search all chats", show=True),
    _key("ctrl+o", "app.models", "Models", "model-list", "Switch to another model", show=True),
    _key("ctrl+s", "chat_settings", "This chat", "chat-settings",
         "Change the system prompt and sampling settings of this chat", show=True),
    _key("f11", "app.settings", "Settings", "settings-open",
         "Show and change settings, themes, system prompts and keys",
         show=True),
    _key("f10", "next_controller", "Controller", "speculation-rule",
         "Switch the draft length: fixed or adaptive (auto)"),
    _key("f7", "draft_length(-1)", "Shorter drafts", "speculation-shorter",
         "Draft one token fewer per round"),
    _key("f8", "draft_length(1)", "Longer drafts", "speculation-longer",
         "Draft one more token per round"),
    _key("ctrl+t", "next_tint", "Token colours", "transcript-colours",
         "Switch token colours: by predictor, by accepted/rejected, off"),
    _key("f9", "next_tab", "Next tab", "screen-tab",
         "On a narrow screen, switch between chat, speculation and memory"),
    _key("ctrl+g", "regenerate", "Regenerate", "reply-regenerate",
         "Generate another reply; the old reply stays as a variant"),
    _key("alt+p", "variant(-1)", "Previous variant", "reply-variant-before",
         "Show the previous variant of the selected message, or of the last message with variants"),
    _key("alt+n", "variant(1)", "Next variant", "reply-variant-next",
         "Show the next variant of the selected message, or of the last message with variants"),
    _key("ctrl+b", "sidebar", "Sidebar", "chat-sidebar",
         "Show or hide the chat list; on a narrow screen, open the list"),
    _key("alt+s", "find", "Find", "chat-find", "Find text in this chat; step through matches"),
    _key("ctrl+r", "app.restart", "Restart", "engine-restart", "Restart the engine"),
]  # fmt: skip

MESSAGE_KEYS: list[BindingType] = [
    _key("r", "screen.regenerate", "Regenerate", "message-regenerate",
         "Generate another reply; the old reply stays as a variant", show=True),
    _key("c", "screen.continue_reply", "Continue", "message-continue",
         "Continue the last reply from where it was cut off"),
    _key("t", "thinking", "Thinking", "message-thinking",
         "Show or fold the thinking of a reasoning model"),
    _key("f", "screen.fork", "Fork", "message-fork",
         "Copy the chat up to the selected message into a new chat", show=True),
    _key("x", "screen.export", "Export", "chat-export",
         "Write this chat to a file: Markdown, or JSON lines with every branch"),
    _key("u", "screen.see_all", "See all", "message-see-all",
         "Restore dropped and summarised turns: the model then sees the whole chat"),
    _key("e", "screen.edit", "Edit", "message-edit",
         "Edit a question; the old text stays as a variant", show=True),
    _key("E", "screen.edit_reply", "Change reply", "message-edit-reply",
         "Edit a reply: the model continues your text; the old reply stays as a variant"),
    _key("y", "screen.copy_message", "Copy", "message-copy",
         "Copy the selected message, or the last reply", show=True),
    _key("Y", "screen.copy_code", "Copy code", "message-copy-code",
         "Copy the last code block; press again for the previous block", show=True),
    _key("i", "screen.statistics", "Statistics", "message-statistics",
         "Show or hide token counts, times and drafts of the selected or last reply"),
    _key("left_square_bracket", "screen.variant(-1)", "Previous variant", "message-variant-before",
         "Show the previous variant"),
    _key("right_square_bracket", "screen.variant(1)", "Next variant", "message-variant-next",
         "Show the next variant"),
    _key("slash", "screen.find", "Find", "message-find", "Find text in this chat"),
    _key("k", "select(-1)", "Message above", "message-above", "Select the message above"),
    _key("j", "select(1)", "Message below", "message-below", "Select the message below"),
    _key("g", "load_earlier", "Earlier messages", "transcript-earlier",
         "Show earlier messages; if all are shown, go to the top"),
    _key("G,end", "follow", "To the end", "transcript-end", "Go to the end and follow the reply"),
]  # fmt: skip

COMPOSER_KEYS: list[BindingType] = [
    _key("enter", "screen.send", "Send", "composer-send",
         "Send the message; if the composer is empty, continue a reply that was cut off"),
    _key("ctrl+j,alt+enter,shift+enter", "newline", "New line", "composer-newline",
         "Insert a new line"),
    _key("ctrl+c", "copy_or_clear", "Clear", "composer-empty",
         "Copy the selection; if nothing is selected, clear the composer (ctrl+z undoes this)"),
    _key("ctrl+a", "line_start_or_all", "Select all", "composer-all",
         "Go to the start of the line; at the start, select all"),
    _key("ctrl+z", "undo", "Undo", "composer-undo",
         "Undo the last change: typed, pasted or cleared text"),
    _key("up", "older", "Earlier question", "composer-older",
         "Go up a line; on the first line, edit a queued message or show the previous question"),
    _key("down", "newer", "Later question", "composer-newer",
         "Go down a line; on the last line, show the next question, then your unsent text"),
    _key("tab", "complete", "Complete", "composer-complete",
         "Insert the highlighted completion; if there is none, go to the messages"),
    _key("alt+o", "open_paste", "Open a paste", "composer-open-paste",
         "Expand a paste in the composer to its full text; ctrl+z folds the paste again"),
]  # fmt: skip


SLASH_NAMES: Mapping[str, tuple[str, ...]] = {
    "app-help": ("help", "keys"),
    "app-quit": ("quit", "exit"),
    "cache-open": ("cache",),
    "chat-export": ("export",),
    "chat-find": ("find",),
    "chat-list": ("chats", "history"),
    "chat-new": ("new", "clear"),
    "chat-search": ("search",),
    "chat-settings": ("system", "sampling"),
    "chat-sidebar": ("sidebar",),
    "compare-open": ("compare",),
    "composer-open-paste": ("paste",),
    "engine-restart": ("restart",),
    "message-continue": ("continue",),
    "message-copy": ("copy",),
    "message-copy-code": ("code",),
    "message-edit": ("edit",),
    "message-see-all": ("see-all",),
    "message-statistics": ("statistics", "stats"),
    "model-list": ("models", "open"),
    "model-plan": ("plan",),
    "preset-list": ("presets",),
    "reply-regenerate": ("again", "retry"),
    "reply-stop": ("stop",),
    "settings-open": ("settings",),
    "speculation-predictor": ("predictor",),
    "speculation-rule": ("rule",),
    "transcript-colours": ("colours", "colors"),
}
"""Slash commands of actions: a name and aliases; other actions are called by their ids."""
SHORT_NAMES = {name for names in SLASH_NAMES.values() for name in names}

ON_THE_CHAT = frozenset({"ChatScreen", "Transcript", "Composer"})
"""Parts of one screen: a key of one of them is a key of all."""
EVERYWHERE = "KvchatApp"
NO_KEY = "none"
"""Stands for the key of an action that is to have none: no keyboard has a key of this name."""
_CHARACTERS = {_character_to_key(chr(c)): chr(c) for c in range(33, 127)}
_NAMED = {*(each.value for each in Keys), *_CHARACTERS}
_MODIFIERS = frozenset({"ctrl", "alt", "shift", "super", "hyper", "meta"})


_IN_A_HINT = re.compile(r"\{([a-z]+(?:-[a-z]+)+)\}")
_USUAL_KEYS = {
    key.id: key.key.split(",")
    for key in (*CHAT_KEYS, *MESSAGE_KEYS, *COMPOSER_KEYS)
    if isinstance(key, Binding) and key.id
} | {"app-quit": ["ctrl+q"]}


def with_keys(text: str, app: object) -> str:
    """A hint such as `{reply-stop} stops the reply` with the keys that the application has now.

    An action of the chat without a key is called by its command: `/stop stops the reply`.
    """
    keymap: Mapping[str, str] = getattr(app, "keymap", {})

    def named(match: re.Match[str]) -> str:
        name = match[1]
        if name not in _USUAL_KEYS:
            return match[0]
        taken = {
            key for other in _USUAL_KEYS.keys() & keymap.keys() for key in keymap[other].split(",")
        }
        own = keymap[name].split(",") if name in keymap else _USUAL_KEYS[name]
        free = (key for key in own if key != NO_KEY and (name in keymap or key not in taken))
        key = next(free, f"/{SLASH_NAMES.get(name, (name,))[0]}")
        return "esc" if key == "escape" else _CHARACTERS.get(key, key)

    return _IN_A_HINT.sub(named, text)


@dataclass(frozen=True, slots=True)
class Action:
    """An action that a key runs, with the screens that have it."""

    id: str
    keys: tuple[str, ...]
    """The action's default keys, by Textual's names."""
    title: str
    meaning: str
    owners: frozenset[str]
    """The classes that have the key."""

    def meets(self, other: "Action") -> bool:
        """Whether one key pressed could mean both."""
        both = (self.owners, other.owners)
        if any(EVERYWHERE in owners for owners in both) or self.owners & other.owners:
            return True
        return all(owners & ON_THE_CHAT for owners in both)


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the palette and the composer."""

    name: str
    """Name of the command after the slash, in lower case, such as `new`."""
    title: str
    """Title in the command palette, such as `Chat: New`."""
    description: str
    run: Callable[[], object]
    aliases: tuple[str, ...] = ()
    key: str = ""
    """The key that runs the command now."""
    obstacle: str = ""
    """Why it can do nothing now; empty where it can."""
    run_with: Callable[[str], object] | None = None
    """Runs it with the words after the name; None if it accepts none."""

    @property
    def is_named(self) -> bool:
        """Whether the command has a short name and is listed before commands without one."""
        return bool(self.aliases) or "-" not in self.name or self.name in SHORT_NAMES

    @property
    def meaning(self) -> str:
        """The description of the command, or why it is not available now."""
        return f"not available: {self.obstacle}" if self.obstacle else self.description


@dataclass(frozen=True, slots=True)
class Keymap:
    """Keys by binding id as Textual takes them, and what is wrong."""

    keys: Mapping[str, str]
    problems: tuple[str, ...] = ()


def read_keymap(configured: Mapping[str, str], actions: Collection[Action]) -> Keymap:
    """The keymap of the settings: keys by binding id, several separated by commas.

    Names of no key or action are left out and reported. Two actions with one key are reported.
    """
    known = {action.id: action for action in actions}
    keys: dict[str, tuple[str, ...]] = {}
    problems: list[str] = []
    for binding_id, text in configured.items():
        parts = tuple(long_name(part.strip()) for part in text.split(","))
        if binding_id not in known:
            hint = did_you_mean(binding_id, known) or ": use an action id from the help screen"
            problems.append(f"[keys] {binding_id} is not an action{hint}")
        elif not all(parts):
            problems.append(f"[keys] {binding_id} is empty: write a key such as f8, or none")
        elif parts == (NO_KEY,):
            keys[binding_id] = parts
        elif wrong := next((part for part in parts if not is_key(part)), None):
            problems.append(
                f"[keys] {binding_id} is {shown(wrong)}, which is not a key: write a key such as "
                "f8 or ctrl+t"
            )
        else:
            keys[binding_id] = parts
    for one, other in product((known[name] for name in keys), actions):
        # Some keys are shared by default, such as enter of a list and of its screen.
        by_default = {*one.keys} & {*other.keys}
        shared = {*keys[one.id]} & {*keys.get(other.id, other.keys)} - by_default - {NO_KEY}
        is_reported = other.id in keys and other.id <= one.id
        if shared and one.id != other.id and not is_reported and one.meets(other):
            problems.append(
                f"[keys] {one.id} and {other.id} both use {', '.join(sorted(shared))}: set another "
                f"key for {other.id}, or none"
            )
    return Keymap({name: ",".join(parts) for name, parts in keys.items()}, tuple(problems))


def completions(commands: Sequence[Command], typed: str) -> list[Command]:
    """The commands that the text after the slash can become, the nearest first."""
    wanted = typed.casefold().strip()
    begin = [c for c in commands if any(n.startswith(wanted) for n in (c.name, *c.aliases))]
    others = [c for c in commands if c not in begin and len(wanted) > 1 and wanted in c.name]
    return [*sorted(begin, key=lambda c: (c.name != wanted, not c.is_named)), *others]


def command_named(commands: Iterable[Command], typed: str) -> Command | None:
    """The command with a name or an alias."""
    wanted = typed.casefold().strip()
    return next((c for c in commands if wanted in (c.name, *c.aliases)), None)


def is_key(name: str) -> bool:
    """Whether a terminal could send a key of this name."""
    *modifiers, key = name.split("+")
    is_named = key in _NAMED or key_to_character(key) is not None
    return bool(key) and is_named and {*modifiers} <= _MODIFIERS


def long_name(key: str) -> str:
    """A key as Textual calls it: `[` is `left_square_bracket`."""
    return _character_to_key(key) if len(key) == 1 else key
