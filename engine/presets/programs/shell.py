"""A shell script that starts llama-server, and commands out of a shell's text.

What is read is a small part of POSIX sh (IEEE 1003.1-2024, chapter 2): quotes, continued lines,
comments, and variables that the text itself sets. Nothing is run.
"""

import re
import shlex
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from engine.presets.programs.base import (
    Exported,
    ExportRequest,
    Format,
    Imported,
    ImportedFileError,
    ImportRequest,
    comments,
    named_file,
    with_absolute_paths,
)
from engine.presets.programs.llama_server import (
    PROGRAM,
    heading,
    read_words,
    request_remarks,
    serving,
    starts_server,
)

_VARIABLE = (
    r"\$(?:\{(?P<braced>[A-Za-z_]\w*)(?:(?P<operator>:?[-=+])"
    r"(?P<default>(?:[^{}]|\{[^{}]*\})*))?\}|(?P<bare>[A-Za-z_]\w*))"
)
_UNKNOWN = r"\$\{[^{}]*\}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`"
"""What only a shell can put in: other expansions, and the output of commands."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PIECE = re.compile(
    r"""
      (?P<skipped>\\\r?\n | (?<![^\s;&|<>()]) (?<!\\[ ]) (?:"\$[@*]"|\$[@*]|\#[^\n]*))
    | (?P<opened>(?<![^\s;&|()]) (?P<filled>[A-Za-z_]\w*)(?P<added>\+?)=\()
    | (?P<array>"\$\{(?P<quoted_array>\w+)\[[@*]\]\}"|\$\{(?P<bare_array>\w+)\[[@*]\]\})
    | (?P<end>[;&|\n<>()]|\Z)
    | (?P<space>[ \t\r]+)
    | (?P<single>'(?P<literal>[^']*)'?)
    | (?P<double>"(?P<quoted>(?:[^"\\]|\\.)*)"?)
    | (?P<escaped>\\(?P<character>.?))
    | (?P<variable>VARIABLE)
    | (?P<unknown>UNKNOWN)
    | (?P<plain>[^\s;&|<>()'"\\$#`]+|.)
    """.replace("VARIABLE", _VARIABLE).replace("UNKNOWN", _UNKNOWN),
    re.DOTALL | re.VERBOSE,
)
"""What a text is cut into; skipped are joined lines, a script's own arguments and comments."""
_IN_QUOTES = re.compile(rf'\\(?P<escaped>["\\$`\n])|{_VARIABLE}|(?P<unknown>{_UNKNOWN})', re.DOTALL)
_DOLLARS = re.compile(rf"\$\$|{_VARIABLE}", re.DOTALL)
_JOINED_IN_WINDOWS = re.compile(r"[ \t][\^`][ \t]*\r?\n")
_COMMENT_IN_WINDOWS = re.compile(r"^[ \t]*(?:@?rem\b|::)[^\n]*", re.IGNORECASE | re.MULTILINE)
_SETTERS = ("export", "local", "readonly", "set", "SET")
"""Words that stand before an assignment."""
MAX_EXPANDED = 1 << 20
"""Characters that variables may come to in one text."""


def render(request: ExportRequest) -> Exported:
    """A POSIX script; what it is called with goes on to llama-server, and wins there."""
    words = serving(with_absolute_paths(request))
    remarks = request_remarks(request)
    body = " \\\n  ".join(shlex.join(line) for line in lines_of(words))
    text = f'#!/bin/sh\n{comments(heading(request, remarks))}exec {body} \\\n  "$@"\n'
    return Exported(text, remarks)


def lines_of(words: Sequence[str]) -> list[list[str]]:
    """A command in lines: the program, then each flag with its value."""
    lines: list[list[str]] = []
    for index, word in enumerate(words):
        if index < 2 or word.startswith("--"):
            lines.append([word])
        else:
            lines[-1].append(word)
    return lines


def read(request: ImportRequest) -> Imported:
    """The preset of the command in a text that starts a llama-server.

    Raises:
        ImportedFileError: there is no such command, or none of its flags means anything.
    """
    text, found = request.text, tuple(_commands_of_any(request.text))
    starting = next((each for each in found if starts_server(each.words)), None)
    if starting is None:
        starting = next((each for each in found if each.words[0].startswith("-")), None)
    if starting is not None:
        return read_words(starting.words, request.name, starting.environment, starting.unset)
    reader = Reader()
    settings = {} if any(reader.commands(text)) else reader.variables
    if not any(variable.startswith("LLAMA_ARG_") for variable in settings):
        raise ImportedFileError(
            "this is not a llama-server command line, a models preset, or a file of llama-swap, "
            "LM Studio, Ollama or koboldcpp: give one of those, or the command after `--`"
        )
    return read_words([PROGRAM], request.name, settings, reader.unset)


def _commands_of_any(text: str) -> Iterator["ShellCommand"]:
    """The commands of a script of a POSIX shell, of cmd.exe or of PowerShell."""
    if _JOINED_IN_WINDOWS.search(text) is None and ".exe" not in text:
        return commands(text)
    joined = _JOINED_IN_WINDOWS.sub(" ", _COMMENT_IN_WINDOWS.sub("", text))
    with_variables = re.sub(r"%(\w+)%", r"${\1}", joined)
    return Reader(has_escapes=False).commands(with_variables)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a text."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The variables that are set when it is reached, until the next command is asked for."""
    unset: Set[str] = frozenset()
    """Words and values with variables that the text does not set, as they are written."""


def commands(text: str) -> Iterator[ShellCommand]:
    """The commands of a text in their order; a quote without its end lasts to the end.

    Raises:
        ImportedFileError: its variables grow beyond all bounds.
    """
    return Reader().commands(text)


@dataclass(slots=True)
class Reader:
    """Reads commands and keeps the variables that they set."""

    variables: dict[str, str] = field(default_factory=dict)
    unset: set[str] = field(default_factory=set)
    """Words and values with variables that nothing sets."""
    has_escapes: bool = True
    """Whether a backslash escapes, which it does not in Windows."""
    _arrays: dict[str, list[str]] = field(default_factory=dict)
    _n_expanded: int = 0
    _words: list[str] = field(default_factory=list)
    _word: list[str] | None = None
    _is_unset: bool = False

    def commands(self, text: str) -> Iterator[ShellCommand]:
        """The commands of a text in their order."""
        array: str | None = None
        before: list[str] = []
        for piece in _PIECE.finditer(text):
            match piece.lastgroup:
                case "space":
                    self._end_word()
                case "end" if array is not None and piece[0]:
                    self._end_word()
                    if piece[0] == ")":
                        self._arrays[array] += self._words
                        self._words, array = before, None
                case "end":
                    self._end_word()
                    words, self._words = self._words, []
                    yield from self._command(words)
                case "opened":
                    array = str(piece["filled"])
                    before, self._words = self._words, []
                    self._arrays[array] = self._arrays.get(array, []) if piece["added"] else []
                case "array":
                    self._end_word()
                    name = str(piece["quoted_array"] or piece["bare_array"])
                    items = self._arrays.get(name, [])
                    self._count(sum(len(item) + 1 for item in items))
                    self._words += items
                case "variable":
                    self._split(self._value(piece))
                case "skipped":
                    pass
                case _:
                    self._add(self._text(piece))

    def interpolated(self, text: str) -> str:
        """A text of a unit or of a compose file: its variables put in, `$$` as `$`."""
        self._is_unset = False
        found = _DOLLARS.sub(lambda match: "$" if match[0] == "$$" else self._value(match), text)
        if self._is_unset:
            self.unset.add(found)
        return found

    def _add(self, part: str) -> None:
        if self._word is None:
            self._word = []
        self._word.append(part)

    def _end_word(self) -> None:
        if self._word is not None:
            word = "".join(self._word)
            self._words.append(word)
            if self._is_unset:
                assigned = _ASSIGNMENT.fullmatch(word)
                self.unset |= {word, *([assigned[2]] if assigned else [])}
        self._word, self._is_unset = None, False

    def _split(self, value: str) -> None:
        """Put in a variable outside of quotes, whose spaces end words unless it is assigned."""
        is_assigned = self._word is not None and _ASSIGNMENT.match(self._word[0]) is not None
        parts = [value] if is_assigned or self._is_unset else value.split()
        for index, part in enumerate(parts):
            if index:
                self._end_word()
            self._add(part)

    def _command(self, words: list[str]) -> Iterator[ShellCommand]:
        """A command; words that only set variables set them."""
        local: dict[str, str] = {}
        for index, word in enumerate(words):
            if match := _ASSIGNMENT.fullmatch(word):
                local[match[1]] = match[2]
            elif word not in _SETTERS or not any(map(_ASSIGNMENT.fullmatch, words[index:])):
                environment = ChainMap(local, self.variables)
                yield ShellCommand(tuple(words[index:]), environment, self.unset)
                return
        self.variables.update(local)

    def _text(self, piece: re.Match[str]) -> str:
        """A piece of a word without its quotes, its variables put in."""
        match piece.lastgroup:
            case "single":
                return str(piece["literal"])
            case "double":
                return _IN_QUOTES.sub(self._in_quotes, piece["quoted"])
            case "escaped" if self.has_escapes:
                return str(piece["character"])
            case "unknown":
                self._is_unset = True
        return piece[0]

    def _in_quotes(self, match: re.Match[str]) -> str:
        if match["unknown"] is not None:
            self._is_unset = True
            return match[0]
        escaped: str | None = match["escaped"]
        if escaped is None:
            return self._value(match)
        return escaped.strip("\n") if self.has_escapes else match[0]

    def _value(self, match: re.Match[str]) -> str:
        """The value of a variable; one that the text does not set stays as it is written."""
        name, operator = str(match["braced"] or match["bare"]), match["operator"] or ""
        value = self.variables.get(name)
        is_empty = value is None or (operator.startswith(":") and not value)
        if operator.endswith("+"):
            value = "" if is_empty else self._filled(match["default"])
        elif operator and is_empty:
            value = self._filled(match["default"])
            if operator.endswith("="):
                self.variables[name] = value
        if value is None:
            self._is_unset = True
            return match[0]
        self._is_unset = self._is_unset or value in self.unset
        self._count(len(value))
        return value

    def _count(self, n_more: int) -> None:
        self._n_expanded += n_more
        if self._n_expanded > MAX_EXPANDED:
            raise ImportedFileError(
                f"the variables of this text expand to more than {MAX_EXPANDED:,} characters: "
                "give the command with its values written out"
            )

    def _filled(self, default: str) -> str:
        """The default of a variable without its quotes, its own variables put in."""
        return _IN_QUOTES.sub(self._in_quotes, default.strip("\"'"))


FORMAT = Format(
    "shell",
    "shell script that starts llama-server",
    named_file(".sh"),
    render,
    starts_server=True,
    read=read,
)
