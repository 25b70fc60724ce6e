from types import SimpleNamespace

import pytest
from textual._xterm_parser import XTermParser
from textual.events import Key

from app.bindings import Action, is_key, read_keymap, with_keys
from app.commands import every_action


def action(name: str, key: str, *owners: str) -> Action:
    return Action(name, (key,), name.title(), name, frozenset(owners or {"ChatScreen"}))


ACTIONS = (
    action("chat-stop", "escape"),
    action("chat-new", "ctrl+n"),
    action("app-quit", "ctrl+q", "KvchatApp"),
    action("rows-down", "down", "SelectList"),
    action("presets-load", "l", "PresetsScreen"),
    action("message-copy", "y", "Transcript"),
)


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (
            {"chat-stop": "f8, ctrl+t", "app-quit": "f10"},
            {"chat-stop": "f8,ctrl+t", "app-quit": "f10"},
        ),
        (
            {"message-copy": "[", "presets-load": "L"},
            {"message-copy": "left_square_bracket", "presets-load": "L"},
        ),
        ({"chat-stop": "f8", "presets-load": "f8"}, {"chat-stop": "f8", "presets-load": "f8"}),
        ({"presets-load": "ctrl+n"}, {"presets-load": "ctrl+n"}),
    ],
    ids=["by id", "letters and signs", "one key on two screens", "a key of another screen"],
)
def test_keys_are_read(typed: dict[str, str], keys: dict[str, str]) -> None:
    assert read_keymap(typed, ACTIONS).keys == keys
    assert read_keymap(typed, ACTIONS).problems == ()


@pytest.mark.parametrize(
    ("typed", "valid", "named"),
    [
        ({"chat-stopp": "f8"}, {}, "chat-stop?"),
        ({"zzz": "f8"}, {}, "help screen"),
        ({"chat-stop": ""}, {}, "chat-stop"),
        ({"chat-new": "f8,"}, {}, "chat-new"),
        ({"chat-stop": "ctlr+t"}, {}, "'ctlr+t'"),
        ({"chat-stop": "f8", "app-quit": "f8"}, {"chat-stop": "f8", "app-quit": "f8"}, "app-quit"),
        ({"chat-stop": "ctrl+n"}, {"chat-stop": "ctrl+n"}, "chat-new"),
        ({"chat-stop": "y"}, {"chat-stop": "y"}, "message-copy"),
        ({"presets-load": "ctrl+q"}, {"presets-load": "ctrl+q"}, "app-quit"),
    ],
)
def test_what_is_wrong_with_keys_is_named_once(
    typed: dict[str, str], valid: dict[str, str], named: str
) -> None:
    keymap = read_keymap(typed, ACTIONS)
    assert keymap.keys == valid
    [problem] = keymap.problems
    assert named in problem


def test_an_action_may_lose_its_key_on_purpose() -> None:
    typed = {"chat-stop": "ctrl+n", "chat-new": "none", "app-quit": "none"}
    keymap = read_keymap(typed, ACTIONS)
    assert keymap.problems == ()
    assert not is_key(keymap.keys["chat-new"])


def test_every_key_of_the_application_is_one_that_can_be_typed() -> None:
    for each in every_action():
        assert all(map(is_key, each.keys)), each
        assert read_keymap({each.id: ",".join(each.keys)}, every_action()).problems == ()


@pytest.mark.parametrize(
    ("keymap", "shown"),
    [
        ({}, "esc, f2, / and E"),
        ({"reply-stop": "f8,f9", "message-find": "left_square_bracket"}, "f8, f2, [ and E"),
        ({"reply-stop": "none", "app-help": "f2"}, "/stop, /plan, / and E"),
        ({"presets-load": "f2"}, "esc, f2, / and E"),
    ],
)
def test_a_hint_names_the_keys_of_now_or_the_command(keymap: dict[str, str], shown: str) -> None:
    hint = "{reply-stop}, {model-plan}, {message-find} and {message-edit-reply}"
    assert with_keys(hint, SimpleNamespace(keymap=keymap)) == shown
    assert with_keys("{no-action} {} {stop}", SimpleNamespace(keymap=keymap)) == (
        "{no-action} {} {stop}"
    )


def test_every_letter_with_alt_arrives_from_a_terminal_that_sends_escape_and_the_letter() -> None:
    keys = [key for action in every_action() for key in action.keys]
    for key in (key for key in keys if key.startswith("alt+") and key != "alt+enter"):
        parser = XTermParser()
        [event] = [*parser.feed(f"\x1b{key.removeprefix('alt+')}"), *parser.feed("")]
        assert isinstance(event, Key)
        assert event.key == key
