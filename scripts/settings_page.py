"""Write the two tables of docs/settings.md: every setting, as on F11, and every key.

    python scripts/settings_page.py

Each table is between marks such as `<!-- settings: begin -->`; the rest of the page is unchanged.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from textual.keys import key_to_character

import app.application  # noqa: F401  declares the keys of the application
from app.bindings import ON_THE_CHAT
from app.commands import every_action
from app.setting_definitions import definitions

_KEY_NAMES = {"escape": "esc", "slash": "/"}
PAGE = Path(__file__).resolve().parent.parent / "docs" / "settings.md"


def main() -> None:
    """Write the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """A page with new tables between its marks.

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
    rows = (
        (f"`{each.section}.{each.key}`", _code(each.format(each.default)), each.allowed,
         each.markdown, each.effect)
        for each in definitions()
    )  # fmt: skip
    return _table(("setting", "default", "values", "meaning", "takes effect"), rows)


def keys_table() -> str:
    """Every key, first those of the chat, its messages and its composer."""
    actions = sorted(every_action(), key=lambda each: (not each.owners & ON_THE_CHAT, each.id))
    rows = (
        (", ".join(_code(_shown(key)) for key in each.keys), _code(each.id), each.meaning)
        for each in actions
    )
    return _table(("key", "action", "meaning"), rows)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _shown(key: str) -> str:
    *modifiers, last = key.split("+")
    character = key_to_character(last) or ""
    name = character if character.isprintable() and not character.isspace() else ""
    return "+".join((*modifiers, name or _KEY_NAMES.get(last, last)))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heads, ("---",) * len(heads), *rows)
    cells = ((cell.replace("|", r"\|") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


if __name__ == "__main__":
    main()
