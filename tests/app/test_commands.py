"""What the command palette, the composer and the help are made from."""

from pathlib import Path

from textual.command import CommandList
from textual.dom import DOMNode
from textual.widget import Widget

from app.bindings import SLASH_NAMES, Command, command_named, completions
from app.commands import (
    Palette,
    _own_kinds,
    commands_of,
    every_action,
    key_sections,
    own_bindings,
    own_nodes,
)
from app.screens.chats import ChatsScreen
from app.screens.planner import PlannerScreen
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


async def test_a_page_down_before_the_palette_has_its_list_does_nothing(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        app.action_command_palette()
        await pilot.pause()
        palette = app.screen
        assert isinstance(palette, Palette)
        commands = palette.query_one(CommandList)
        await pilot.press("down")
        await pilot.pause()
        commands.styles.height = 0
        commands.refresh(layout=True)
        await pilot.pause()
        commands._clear_caches()
        commands.highlighted = 0
        await pilot.press("pagedown")
        assert app.screen is palette


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


async def test_the_help_has_no_name_of_a_class(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    every_action()
    several_words = {
        kind.__name__.lower()
        for kind in _own_kinds(DOMNode)
        if issubclass(kind, Widget) and sum(map(str.isupper, kind.__name__)) > 1
    }
    async with app.run_test(size=(120, 36)):
        for screen in (app.screen, PlannerScreen(None, None), ChatsScreen(app.controller)):
            if screen is not app.screen:
                await app.push_screen(screen)
            titles = [section.title for section in key_sections(app, screen, {})]
            assert len(titles) > 1
            assert not {title.rpartition(" ")[2] for title in titles} & several_words
