"""`kvchat settings`: the list of settings and their changes, without a screen."""

from typing import TYPE_CHECKING

import click

from app.cli.options import json_option
from app.console import note, print_json, print_line
from app.sanitize import one_line
from engine.validation import did_you_mean

if TYPE_CHECKING:
    from app.config import UserSettings
    from app.render.settings import SettingValue
    from app.setting_definitions import SettingDefinition

OPEN_TABLES = ("prompts", "keys")
"""Tables whose keys the user names."""


@click.command(name="settings")
@click.argument("name", required=False, metavar="[TABLE.KEY]")
@click.argument("value", required=False)
@click.option(
    "--default",
    "takes_default",
    is_flag=True,
    help="Restore the default: remove the setting from the file.",
)
@click.option("--schema", is_flag=True, help="Print the JSON schema of the settings file.")
@json_option
def command(
    name: str | None, value: str | None, *, takes_default: bool, schema: bool, as_json: bool
) -> None:
    """List all settings, or explain or change a setting.

    \b
    kvchat settings                         every value and its source
    kvchat settings chat.temperature        meaning, range, when it takes effect
    kvchat settings chat.temperature 0.3    change the value, keep comments
    kvchat settings chat.temperature --default
    """  # noqa: D301  click wants the backspace character itself
    from app.config import UserSettings
    from app.render.lines import plain
    from app.render.settings import detail_lines
    from app.setting_definitions import definitions, settings_schema

    if schema:
        print_json(settings_schema())
        return
    if (value is not None or takes_default) and name is None:
        raise click.UsageError("specify a setting, such as chat.temperature")
    if value is not None and takes_default:
        raise click.UsageError("use a value or --default, not both")
    settings = UserSettings()
    if settings.loaded.problem is not None:
        note(settings.loaded.problem)
    if name is None:
        tables = settings.settings.model_dump(include=set(OPEN_TABLES))
        own = (_open(table, key) for table in OPEN_TABLES for key in tables[table])
        _show([_value(each, settings) for each in (*definitions(), *own)], as_json=as_json)
        return
    definition = _named(name)
    if value is not None or takes_default:
        read = None if value is None else definition.read(value)
        if (definition.section, definition.key) == ("ui", "theme") and read is not None:
            from app.themes import require_theme  # imports Textual

            require_theme(str(read))
        settings.change(definition.section, definition.key, read)
    found = _value(definition, settings)
    _show([found], as_json=as_json)
    if not as_json and value is None:
        for line in detail_lines(found, 80):
            print_line(f"  {plain(line)}")


def _named(name: str) -> "SettingDefinition":
    from app.setting_definitions import definitions

    known = {f"{each.section}.{each.key}": each for each in definitions()}
    table, _, key = name.partition(".")
    if table in OPEN_TABLES and key:
        return _open(table, key)
    if name not in known:
        hint = did_you_mean(name, known) or ": `kvchat settings` lists all settings"
        raise click.UsageError(f"unknown setting: {name}{hint}")
    return known[name]


def _open(table: str, key: str) -> "SettingDefinition":
    from app.setting_definitions import SettingDefinition

    if table == "prompts":
        return SettingDefinition(table, key, "A saved system prompt.", None, is_long=True)
    from app.commands import every_action  # imports Textual

    action = next((each for each in every_action() if each.id == key), None)
    meaning = "Keys that run this action." if action is None else action.meaning
    return SettingDefinition(table, key, meaning, ", ".join(action.keys) if action else None)


def _value(definition: "SettingDefinition", settings: "UserSettings") -> "SettingValue":
    from app.render.settings import value_of

    return value_of(definition, settings.loaded, {})


def _show(values: "list[SettingValue]", *, as_json: bool) -> None:
    if as_json:
        print_json([
            {
                "name": f"{each.definition.section}.{each.definition.key}",
                "value": each.text,
                "default": each.definition.format(each.definition.default),
                "source": each.source,
                "fault": each.fault or None,
                "meaning": each.definition.meaning,
            }
            for each in values
        ])  # fmt: skip
        return
    names = [one_line(f"{each.definition.section}.{each.definition.key}") for each in values]
    width = max(map(len, names))
    for name, each in zip(names, values, strict=True):
        source = (f"  ignored: {each.fault}", "red") if each.fault else (f"  {each.source}", "dim")
        print_line(f"{name:<{width}}  ", one_line(each.text) or "none", source)
