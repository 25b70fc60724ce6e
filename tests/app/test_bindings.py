from app.bindings import read_keymap

IDS = ("chat-stop", "chat-new", "app-quit")


def test_keys_are_taken_by_id() -> None:
    keymap = read_keymap({"chat-stop": "f8, ctrl+t", "app-quit": "f10"}, IDS)
    assert keymap.keys == {"chat-stop": "f8,ctrl+t", "app-quit": "f10"}
    assert keymap.problems == ()


def test_an_unknown_id_is_named_with_the_nearest() -> None:
    keymap = read_keymap({"chat-stopp": "f8", "zzz": "f9"}, IDS)
    assert keymap.keys == {}
    assert "did you mean chat-stop?" in keymap.problems[0]
    assert "the help screen shows the ids" in keymap.problems[1]


def test_an_empty_key_is_refused() -> None:
    keymap = read_keymap({"chat-stop": "", "chat-new": "f8,"}, IDS)
    assert keymap.keys == {}
    assert len(keymap.problems) == 2


def test_one_key_for_two_actions_goes_to_the_first() -> None:
    keymap = read_keymap({"chat-stop": "f8", "chat-new": "f9,f8"}, IDS)
    assert keymap.keys == {"chat-stop": "f8"}
    assert "wants f8, which chat-stop has already" in keymap.problems[0]


def test_an_id_of_an_earlier_version_rebinds_the_same_key() -> None:
    keymap = read_keymap({"plan-list-down": "n"}, ["rows-down"])
    assert dict(keymap.keys) == {"rows-down": "n"}
    assert keymap.problems == ()
