"""Fills the two tables of docs/settings.md: every setting, as F11 lists it, and every key.

    python scripts/settings_page.py

The tables stand between marks such as `<!-- settings: begin -->`; the rest of the page stays.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from textual.keys import key_to_character

import app.application  # noqa: F401  the keys of the whole application are declared there
from app.bindings import ON_THE_CHAT, Action
from app.commands import every_action
from app.setting_definitions import SettingDefinition, definitions

_KEY_NAMES = {"escape": "esc", "slash": "/"}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """The text of a page with the tables of this version between their marks.

    Raises:
        ValueError: a mark is missing.
    """
    for name, table in (("settings", settings_table()), ("keys", keys_table())):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        head, rest = page.split(begin)
        page = head + begin + "\n" + table + "\n" + end + rest.split(end)[1]
    return page


def settings_table() -> str:
    """Every setting: name, default, allowed values, meaning, and when a change takes effect."""
    heads = ("setting", "default", "values", "meaning", "takes effect")
    return _table(heads, map(_setting_row, definitions()))


def keys_table() -> str:
    """Every key: those of the chat, its messages and its composer first."""
    actions = sorted(every_action(), key=lambda each: (not each.owners & ON_THE_CHAT, each.id))
    return _table(("key", "action", "meaning"), map(_key_row, actions))


def _setting_row(each: SettingDefinition) -> Sequence[str]:
    default = each.spell(each.default)
    name = f"`{each.section}.{each.key}`"
    return name, f"`{default}`" if default else "", each.allowed, each.markdown, each.effect


def _key_row(each: Action) -> Sequence[str]:
    keys = ", ".join(f"`{_shown(key)}`" for key in each.keys)
    return keys, f"`{each.id}`", each.meaning


def _shown(key: str) -> str:
    *modifiers, last = key.split("+")
    character = key_to_character(last) or ""
    name = character if character.isprintable() and not character.isspace() else ""
    return "+".join((*modifiers, name or _KEY_NAMES.get(last, last)))


def _table(heads: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = (heads, ("---",) * len(heads), *rows)
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    main()
