"""Commands in the text of a POSIX shell, cmd.exe or PowerShell, as words. Nothing is run.

Quotes, continued lines, comments, arrays and variables that the text itself sets are read
(IEEE 1003.1-2024, chapter 2). `UNSET` marks a word with a variable that the text does not set.
"""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.presets.export import ImportedFileError

UNSET = "\0"
MAX_EXPANDED = 1 << 20
"""Characters that all variables of one text may expand to."""
_NAME = r"[A-Za-z_]\w*"
_VARIABLE = (
    rf"\$(?:\{{(?P<braced>{_NAME})(?:(?P<operator>:?[-=+])"
    rf"(?P<default>(?:[^{{}}]|\{{[^{{}}]*\}})*))?\}}|(?P<bare>{_NAME}))"
)
_UNKNOWN = r"(?P<unknown>\$[0-9]|\$\{[^{}]*\}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`)"
"""Expansions that only a shell can make, and the output of commands."""
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_TOKEN = re.compile(
    r"""
      (?P<skip>\\\r?\n | (?<![^\s;&|<>()]) (?<!\\[ ]) (?:"\$[@*]"|\$[@*]|\#[^\n]*))
    | (?P<open>(?<![^\s;&|()]) (?P<filled>[A-Za-z_]\w*)(?P<adds>\+?)=\()
    | (?P<array>"\$\{(?P<quoted>\w+)\[[@*]\]\}"|\$\{(?P<plain_array>\w+)\[[@*]\]\})
    | (?P<end>[;&|\n<>()]|\Z)
    | (?P<space>[ \t\r]+)
    | '(?P<single>[^']*)'?
    | "(?P<double>(?:[^"\\]|\\.)*)"?
    | (?P<escape>\\(?P<escaped>.?))
    | (?P<expansion>VARIABLE|UNKNOWN)
    | (?P<plain>[^\s;&|<>()'"\\$`#]+|.)
    """.replace("VARIABLE", _VARIABLE).replace("UNKNOWN", _UNKNOWN),
    re.DOTALL | re.VERBOSE,
)
"""Skipped are joined lines, a script's own arguments and comments."""
_IN_QUOTES = re.compile(rf'\\(?P<escaped>["\\$`\n])|{_VARIABLE}|{_UNKNOWN}', re.DOTALL)
_DOLLARS = re.compile(rf"\$\$|{_VARIABLE}", re.DOTALL)
_WINDOWS = re.compile(r"[ \t][\^`][ \t]*\r?\n|\.exe\b|^[ \t]*\$[\w:]+[ \t]*=", re.MULTILINE)
_TO_POSIX = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"^[ \t]*(?:@?rem\b|::)[^\n]*", ""),
        (r"[ \t][\^`][ \t]*\r?\n", " "),
        (r"%(\w+)%", r"${\1}"),
        (r"^[ \t]*\$(?:env:)?(\w+)[ \t]*=[ \t]*@?", r"\1="),  # PowerShell: $name = @(…)
        (r"(?<=[\"'])[ \t]*,\s*(?=[\"'])", " "),
        (r"(?<=[ \t])@(\w+)\b", r"${\1[@]}"),
    )
)
"""Replacements that turn cmd.exe and PowerShell syntax into POSIX shell syntax."""
_SETTERS = ("export", "local", "readonly", "set", "SET")
"""Words that may precede an assignment."""


class ParsedCommand(NamedTuple):
    """One command of a text."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The variables that are set when it is reached, until the next command is requested."""


def lines_of(words: Sequence[str]) -> list[list[str]]:
    """A command in lines: the program, then each flag with its value."""
    lines: list[list[str]] = []
    for index, word in enumerate(words):
        if index < 2 or word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(word)
    return lines


@dataclass(slots=True)
class Shell:
    """Reads commands; remembers the variables that they set."""

    variables: dict[str, str] = field(default_factory=dict)
    _arrays: dict[str, list[str]] = field(default_factory=dict)
    _n_expanded: int = 0
    _has_escapes: bool = True
    _words: list[str] = field(default_factory=list)
    _word: list[str] | None = None

    def commands(self, text: str) -> Iterator[ParsedCommand]:
        """The commands of a text in their order; a quote without its end lasts to the end."""
        array, outer = "", list[str]()
        for token in _TOKEN.finditer(self._posix(text.replace(UNSET, ""))):
            match token.lastgroup:
                case "space":
                    self._end_word()
                case "end" if array and token[0]:
                    self._end_word()
                    if token[0] == ")":
                        self._arrays[array] += self._words
                        self._words, array = outer, ""
                case "end":
                    self._end_word()
                    words, self._words = self._words, []
                    yield from self._command(words)
                case "open":
                    array = token["filled"]
                    outer, self._words = self._words, []
                    self._arrays[array] = self._arrays.get(array, []) if token["adds"] else []
                case "array":
                    self._end_word()
                    items = self._arrays.get(token["quoted"] or token["plain_array"], [])
                    self._count(sum(len(item) + 1 for item in items))
                    self._words += items
                case "expansion":
                    self._split(self._value(token))
                case "skip":
                    pass
                case _:
                    self._add(self._text(token))

    def expand(self, text: str) -> str:
        """A text of a unit or compose file with its variables expanded and `$$` as `$`."""
        plain = text.replace(UNSET, "")
        return _DOLLARS.sub(lambda found: "$" if found[0] == "$$" else self._value(found), plain)

    def _posix(self, text: str) -> str:
        if _WINDOWS.search(text) is None:
            return text
        self._has_escapes = False
        for pattern, replacement in _TO_POSIX:
            text = pattern.sub(replacement, text)
        return text

    def _add(self, part: str) -> None:
        self._word = self._word or []
        self._word.append(part)

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append("".join(self._word))
        self._word = None

    def _split(self, value: str) -> None:
        """Add an unquoted value, whose spaces end words unless it is assigned or unknown."""
        is_assigned = self._word is not None and _ASSIGNMENT.match(self._word[0]) is not None
        for index, part in enumerate([value] if is_assigned or UNSET in value else value.split()):
            if index:
                self._end_word()
            self._add(part)

    def _command(self, words: list[str]) -> Iterator[ParsedCommand]:
        """A command; words that only assign variables set them."""
        assigned = [match for word in words if (match := _ASSIGNMENT.fullmatch(word))]
        local: dict[str, str] = {}
        for index, word in enumerate(words):
            if match := _ASSIGNMENT.fullmatch(word):
                local[match[1]] = match[2]
            elif word not in _SETTERS or len(local) == len(assigned):
                yield ParsedCommand(tuple(words[index:]), ChainMap(local, self.variables))
                return
        self.variables.update(local)

    def _text(self, token: re.Match[str]) -> str:
        """A part of a word without its quotes, its variables expanded."""
        match token.lastgroup:
            case "single":
                return token["single"]
            case "double":
                return _IN_QUOTES.sub(self._in_quotes, token["double"])
            case "escape" if self._has_escapes:
                return token["escaped"]
            case _:
                return token[0]

    def _in_quotes(self, found: re.Match[str]) -> str:
        escaped: str | None = found["escaped"]
        if escaped is None:
            return self._value(found)
        return escaped.strip("\n") if self._has_escapes else found[0]

    def _value(self, found: re.Match[str]) -> str:
        """The value of a variable; `UNSET` and the text itself if nothing sets it."""
        if found.groupdict().get("unknown") is not None:
            return UNSET + found[0]
        name, operator = found["braced"] or found["bare"], found["operator"] or ""
        value = self.variables.get(name)
        is_empty = value is None or (operator.startswith(":") and not value)
        if operator.endswith("+"):
            value = "" if is_empty else self._default(found)
        elif operator and is_empty:
            value = self._default(found)
            if operator.endswith("="):
                self.variables[name] = value
        if value is None:
            return UNSET + found[0]
        self._count(len(value))
        return value

    def _default(self, found: re.Match[str]) -> str:
        return _IN_QUOTES.sub(self._in_quotes, found["default"].strip("\"'"))

    def _count(self, n_more: int) -> None:
        self._n_expanded += n_more
        if self._n_expanded > MAX_EXPANDED:
            raise ImportedFileError(
                f"the variables of this text expand to more than {MAX_EXPANDED:,} characters: "
                "write values instead of variables"
            )
