"""What the command palette and the help are made from."""

from pathlib import Path

from app.commands import key_commands, key_sections, own_bindings, own_nodes
from tests.fakes_app import make_app


async def test_an_action_is_one_command_however_many_keys_it_has_and_the_help_names_it(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(120, 36)):
        bound = [each.id for node in own_nodes(app.screen) for each in own_bindings(node, {})]
        assert bound.count("composer-newline") > 1
        commands = [each.title for each in key_commands(app, app.screen, {})]
        assert len(commands) == len(set(commands)) == len(set(bound))
        helped = [key.name for section in key_sections(app, app.screen, {}) for key in section.keys]
        assert set(bound) <= set(helped)
