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


def test_keys_are_taken_by_id() -> None:
    keymap = read_keymap({"chat-stop": "f8, ctrl+t", "app-quit": "f10"}, ACTIONS)
    assert keymap.keys == {"chat-stop": "f8,ctrl+t", "app-quit": "f10"}
    assert keymap.problems == ()


def test_an_unknown_id_is_named_with_the_nearest() -> None:
    keymap = read_keymap({"chat-stopp": "f8", "zzz": "f9"}, ACTIONS)
    assert keymap.keys == {}
    assert "did you mean chat-stop?" in keymap.problems[0]
    assert "the help screen shows the ids" in keymap.problems[1]


def test_an_empty_key_is_refused() -> None:
    keymap = read_keymap({"chat-stop": "", "chat-new": "f8,"}, ACTIONS)
    assert keymap.keys == {}
    assert len(keymap.problems) == 2


def test_a_key_that_no_keyboard_sends_is_refused() -> None:
    keymap = read_keymap({"chat-stop": "ctlr+t", "chat-new": "f99"}, ACTIONS)
    assert keymap.keys == {}
    assert "'ctlr+t' is no key" in keymap.problems[0]
    assert "'f99' is no key" in keymap.problems[1]


def test_a_letter_or_sign_is_a_key_by_itself() -> None:
    keymap = read_keymap({"message-copy": "[", "presets-load": "L"}, ACTIONS)
    assert keymap.keys == {"message-copy": "left_square_bracket", "presets-load": "L"}


def test_one_key_for_two_actions_goes_to_the_first() -> None:
    keymap = read_keymap({"chat-stop": "f8", "chat-new": "f9,f8"}, ACTIONS)
    assert keymap.keys == {"chat-stop": "f8"}
    assert "wants f8, which chat-stop has already" in keymap.problems[0]


def test_one_key_may_do_two_things_on_two_screens() -> None:
    keymap = read_keymap({"chat-stop": "f8", "presets-load": "f8"}, ACTIONS)
    assert keymap.problems == ()
    assert set(keymap.keys) == {"chat-stop", "presets-load"}


def test_a_key_that_is_taken_from_another_action_is_told() -> None:
    keymap = read_keymap({"chat-stop": "ctrl+n"}, ACTIONS)
    assert keymap.keys == {"chat-stop": "ctrl+n"}
    assert keymap.problems == (
        "[keys] chat-stop takes ctrl+n from chat-new, which has no key now: "
        "give it another, or none",
    )
    assert "message-copy" in read_keymap({"chat-stop": "y"}, ACTIONS).problems[0]
    assert "app-quit" in read_keymap({"presets-load": "ctrl+q"}, ACTIONS).problems[0]
    assert read_keymap({"presets-load": "ctrl+n"}, ACTIONS).problems == ()


def test_an_action_may_lose_its_key_on_purpose() -> None:
    keymap = read_keymap({"chat-stop": "ctrl+n", "chat-new": "none"}, ACTIONS)
    assert keymap.problems == ()
    assert not is_key(keymap.keys["chat-new"])


def test_every_key_of_the_application_is_one_that_can_be_typed() -> None:
    for each in every_action():
        assert all(map(is_key, each.keys)), each
        assert read_keymap({each.id: ",".join(each.keys)}, every_action()).problems == ()


@pytest.mark.parametrize(
    ("keymap", "said"),
    [
        ({}, "esc, f2, / and E"),
        ({"reply-stop": "f8,f9", "message-find": "left_square_bracket"}, "f8, f2, [ and E"),
        ({"reply-stop": "none", "app-help": "f2"}, "/stop, /plan, / and E"),
        ({"presets-load": "f2"}, "esc, f2, / and E"),
    ],
)
def test_a_hint_names_the_keys_of_now_or_the_command(keymap: dict[str, str], said: str) -> None:
    hint = "{reply-stop}, {model-plan}, {message-find} and {message-edit-reply}"
    assert with_keys(hint, SimpleNamespace(keymap=keymap)) == said
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
