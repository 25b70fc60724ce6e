"""The tables of docs/settings.md list the settings and keys of this version."""

import pytest
import settings_page

from app.commands import every_action
from app.setting_definitions import definitions


def test_the_page_is_up_to_date() -> None:
    page = settings_page.PAGE.read_text(encoding="utf-8")
    assert settings_page.with_tables(page) == page, "run python scripts/settings_page.py"


def test_the_tables_have_a_row_for_each_setting_and_key() -> None:
    settings, keys = settings_page.settings_table(), settings_page.keys_table()
    assert settings.count("\n") == len(definitions()) + 2
    assert keys.count("\n") == len(every_action()) + 2
    assert "| `ctrl+q` | `app-quit` |" in keys
    assert "| `[` | `message-variant-before` |" in keys
    assert "| `esc` | `reply-stop` |" in keys


def test_the_text_around_the_tables_stays() -> None:
    page = (
        "before\n<!-- settings: begin -->\nOUTDATED\n<!-- settings: end -->\n"
        "<!-- keys: begin -->\n<!-- keys: end -->\nafter\n"
    )
    filled = settings_page.with_tables(page)
    assert filled.startswith("before\n<!-- settings: begin -->\n\n| setting |")
    assert filled.endswith("<!-- keys: end -->\nafter\n")
    assert "OUTDATED" not in filled


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="unpack"):
        settings_page.with_tables("no marks")
