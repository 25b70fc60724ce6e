"""What the command palette, the composer and the help are made from."""

from pathlib import Path

from app.bindings import SLASH_NAMES, Command, command_named, completions
from app.commands import commands_of, every_action, key_sections, own_bindings, own_nodes
from tests.support.fakes_app import make_app


async def test_an_action_is_one_command_however_many_keys_it_has_and_the_help_names_it(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(120, 36)):
        nodes = (*own_nodes(app.screen), app)
        bound = [each.id for node in nodes for each in own_bindings(node, {})]
        assert bound.count("composer-newline") > 1
        commands = [*commands_of(app, app.screen, {})]
        titles = [each.title for each in commands]
        keyed = [each for each in commands if each.key]
        assert len(titles) == len(set(titles))
        assert len(keyed) == len(set(bound))
        helped = [key.name for section in key_sections(app, app.screen, {}) for key in section.keys]
        assert set(bound) <= set(helped)


async def test_no_two_commands_have_one_name_and_every_short_name_is_of_a_key(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(120, 36)):
        names = [n for each in app.commands(app.chat) for n in (each.name, *each.aliases)]
        assert len(names) == len(set(names))
    assert set(SLASH_NAMES) <= {action.id for action in every_action()}


def test_the_nearest_command_comes_first() -> None:
    commands = [
        Command("chat-next", "", "", bool),
        Command("chats", "", "", bool, ("history",)),
        Command("chat", "", "", bool),
    ]
    assert [each.name for each in completions(commands, "chat")] == ["chat", "chats", "chat-next"]
    assert [each.name for each in completions(commands, "next")] == ["chat-next"]
    assert [each.name for each in completions(commands, "hist")] == ["chats"]
    assert command_named(commands, "history") is commands[1]
    assert command_named(commands, "his") is None
