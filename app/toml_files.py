"""Changes a TOML file of the user without touching what else stands in it."""

from pathlib import Path

import tomlkit
from tomlkit.exceptions import TOMLKitError

from app.settings import SettingsError
from engine.files import SETTINGS_BYTES, read_text, replace_file
from engine.parsing import parse_toml


def change_toml(path: Path, section: str, key: str, value: str | int | float | bool) -> None:
    """Set one key of one table; comments, order and spelling of the rest stay.

    Raises:
        SettingsError: If the file is not valid TOML, or cannot be read or written.
    """
    try:
        text = read_text(path, limit=SETTINGS_BYTES)
        parse_toml(text)
        document = tomlkit.parse(text)
    except FileNotFoundError:
        document = tomlkit.document()
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (TOMLKitError, ValueError) as error:
        raise SettingsError(f"{path} is not valid TOML ({error}): repair it first") from error
    table = document.setdefault(section, tomlkit.table())
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {section} is not a table: write [{section}] there")
    table[key] = value
    write_atomically(path, tomlkit.dumps(document))


def write_atomically(path: Path, text: str) -> None:
    """Replace a file whole, or leave it as it was; it is for its owner only.

    A link is followed, so that settings kept in another folder stay there.

    Raises:
        SettingsError: If the file cannot be written.
    """
    target = path.resolve()
    try:
        replace_file(target, [text.encode()], is_durable=False)
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}") from error
