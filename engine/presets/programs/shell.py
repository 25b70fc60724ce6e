"""A shell script that starts llama-server, and commands out of a shell's text.

What is read is a small part of POSIX sh (IEEE 1003.1-2024, chapter 2): quotes, continued lines,
comments, and variables that the text itself sets. Nothing is run.
"""

import re
import shlex
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
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
from engine.presets.programs.flags import FLAG_SETS
from engine.presets.programs.llama_server import (
    PROGRAM,
    heading,
    read_words,
    request_remarks,
    serving,
    starts_server,
)

_VARIABLE = r"\$(?:\{(?P<braced>[A-Za-z_]\w*)\}|(?P<bare>[A-Za-z_]\w*))"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PIECE = re.compile(
    r"""
      (?P<skipped>\\\r?\n | (?<![^\s;&|<>()]) (?<!\\[ ]) (?:"\$[@*]"|\$[@*]|\#[^\n]*))
    | (?P<end>[;&|\n<>()]|\Z)
    | (?P<space>[ \t\r]+)
    | (?P<single>'(?P<literal>[^']*)'?)
    | (?P<double>"(?P<quoted>(?:[^"\\]|\\.)*)"?)
    | (?P<escaped>\\(?P<character>.?))
    | (?P<variable>VARIABLE)
    | (?P<plain>[^\s;&|<>()'"\\$#]+|.)
    """.replace("VARIABLE", _VARIABLE),
    re.DOTALL | re.VERBOSE,
)
"""What a text is cut into; skipped are joined lines, a script's own arguments and comments."""
_IN_QUOTES = re.compile(rf'\\(?P<escaped>["\\$`\n])|{_VARIABLE}')
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
    text = request.text
    starting = next((each for each in commands(text) if starts_server(each.words)), None)
    if starting is None:
        starting = next((each for each in commands(text) if each.words[0].startswith("-")), None)
    if starting is not None:
        return read_words(starting.words, request.name, starting.environment)
    settings = settings_only(text)
    if not any(variable.startswith("LLAMA_ARG_") for variable in settings):
        raise ImportedFileError(
            "this is no llama-server command line, no models preset, and no file of llama-swap, LM "
            "Studio, Ollama or koboldcpp: give one of those, or the command behind `--`"
        )
    return read_words([PROGRAM], request.name, settings)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """One command of a text."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The variables that are set when it is reached, until the next command is asked for."""


def commands(text: str) -> Iterator[ShellCommand]:
    """The commands of a text in their order; a quote without its end lasts to the end.

    Raises:
        ImportedFileError: its variables grow beyond all bounds.
    """
    return _Reader().commands(text)


def settings_only(text: str) -> Mapping[str, str]:
    """The variables of a text without commands, as in an environment file; none where it has one.

    Raises:
        ImportedFileError: its variables grow beyond all bounds.
    """
    reader = _Reader()
    return {} if any(reader.commands(text)) else reader.variables


@dataclass(slots=True)
class _Reader:
    variables: dict[str, str] = field(default_factory=dict)
    n_expanded: int = 0

    def commands(self, text: str) -> Iterator[ShellCommand]:
        words: list[str] = []
        word: list[str] | None = None
        for piece in _PIECE.finditer(text):
            if piece.lastgroup in ("space", "end"):
                words += [] if word is None else ["".join(word)]
                word = None
            elif piece.lastgroup != "skipped":
                word = [] if word is None else word
                word.append(self._text(piece))
            if piece.lastgroup == "end":
                yield from self._command(words)
                words = []

    def _command(self, words: list[str]) -> Iterator[ShellCommand]:
        """A command; words that only set variables set them."""
        local: dict[str, str] = {}
        for index, word in enumerate(words):
            if match := _ASSIGNMENT.fullmatch(word):
                local[match[1]] = match[2]
            elif word != "export":
                yield ShellCommand(tuple(words[index:]), ChainMap(local, self.variables))
                return
        self.variables.update(local)

    def _text(self, piece: re.Match[str]) -> str:
        """A piece of a word without its quotes, its variables put in."""
        match piece.lastgroup:
            case "single":
                return piece["literal"]
            case "double":
                return _IN_QUOTES.sub(self._in_quotes, piece["quoted"])
            case "escaped":
                return piece["character"]
            case "variable":
                return self._value(piece)
            case _:
                return piece[0]

    def _in_quotes(self, match: re.Match[str]) -> str:
        escaped: str | None = match["escaped"]
        return self._value(match) if escaped is None else escaped.strip("\n")

    def _value(self, match: re.Match[str]) -> str:
        """The value of a variable that the text sets; others stay as they are written."""
        value = self.variables.get(match["braced"] or match["bare"])
        if value is None:
            return match[0]
        self.n_expanded += len(value)
        if self.n_expanded > MAX_EXPANDED:
            raise ImportedFileError(
                f"the variables of this text come to more than {MAX_EXPANDED:,} characters: give "
                "the command with its values written out"
            )
        return value


FORMAT = Format(
    "shell",
    "shell script that starts llama-server",
    named_file(".sh"),
    render,
    flag_sets=tuple(FLAG_SETS),
    read=read,
)
