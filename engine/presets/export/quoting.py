"""How the formats quote: YAML, shell, systemd, INI."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence

from engine.presets.export.request import UNWRITABLE, ExportError

_PREFIXES = "@-:+!|"
"""They change how systemd starts a program (systemd.service(5), `|` since version 258)."""
_PLAIN_FOR_SYSTEMD = re.compile(r"[A-Za-z0-9_./:=,@+-]+")


def yaml_text(text: str) -> str:
    """Give a text as a double-quoted YAML scalar; every JSON string is one (YAML 1.2, §1.3).

    What YAML has not in a file is escaped, and so are the characters that only YAML breaks at.
    """
    quoted = json.dumps(text, ensure_ascii=False)
    return UNWRITABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def lines_of(words: Sequence[str]) -> list[list[str]]:
    """Group a command: the program, then each flag with its value."""
    lines: list[list[str]] = []
    for index, word in enumerate(words):
        if index and (word.startswith("--") or len(lines) == 1):
            lines.append([word])
        elif lines:
            lines[-1].append(word)
        else:
            lines.append([word])
    return lines


def systemd_word(word: str) -> str:
    """Quote a word of `ExecStart=` (systemd.syntax(7), systemd.service(5) and .unit(5)).

    `%` starts a specifier and `$` a variable: both are doubled.
    """
    return _quoted_for_systemd(word.replace("$", "$$"))


def systemd_program(program: str) -> str:
    """Quote the first word of `ExecStart=`, in which `$` starts no variable (systemd 252).

    Raises:
        ExportError: it is neither a bare name nor a whole path, or starts with one of systemd's
            prefixes, which quotes do not undo.
    """
    is_name = "/" not in program and program not in ("", ".", "..")
    if not (is_name or program.startswith("/")) or program[0] in _PREFIXES:
        raise ExportError(
            f"systemd starts a program by its whole path or its bare name, which none of "
            f"{' '.join(_PREFIXES)} begins, and {program!r} is neither: write its whole path"
        )
    return _quoted_for_systemd(program)


def _quoted_for_systemd(word: str) -> str:
    doubled = word.replace("%", "%%")
    if _PLAIN_FOR_SYSTEMD.fullmatch(word):
        return doubled
    escaped = doubled.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def compose_word(word: str) -> str:
    """Quote a word of a compose file, where `$` starts a variable and is doubled."""
    return yaml_text(word.replace("$", "$$"))


def swap_words(words: Iterable[str]) -> str:
    """Join words for llama-swap, which replaces `${name}` before it splits like a shell.

    A quoted brace ends and starts its quotes anew, so that the text has no `${` in it.
    """
    return shlex.join(words).replace("${", "$''{")


def ini_value(value: str) -> str:
    """Give a value as it is, if the INI of llama-server can hold it.

    Raises:
        ExportError: it has a `;` or `#`, which start a comment anywhere, or spaces at an end.
    """
    if any(mark in value for mark in ";#") or value != value.strip():
        raise ExportError(
            f"llama-server's models preset has no quotes, and {value!r} has a `;`, a `#` or a "
            "space at its end: rename it, or give it a link with another name"
        )
    return value
