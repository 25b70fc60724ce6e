"""Settings and commands of `docs/cache.md` exist."""

import re
import tomllib
from pathlib import Path

from app.cli.cache import command
from app.config import CacheDefaults, Settings

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "cache.md").read_text(encoding="utf-8")


def test_the_settings_shown_are_the_defaults_and_all_of_them() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    shown = tomllib.loads(block)
    assert Settings.model_validate(shown) == Settings()
    assert set(shown["cache"]) == set(CacheDefaults.model_fields)


def test_every_command_is_in_the_table() -> None:
    (table,) = re.findall(r"\| command \|.*?\n\n", TEXT, re.DOTALL)
    names = {name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in
             re.findall(r"`(?:kvchat cache )?\[?([a-z]+)", row)}  # fmt: skip
    assert names == set(command.commands)
