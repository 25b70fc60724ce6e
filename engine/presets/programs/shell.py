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

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_PLAIN = re.compile(r"""[^\s;&|<>()'"\\$#]+""")
_QUOTED = re.compile(r"""[^"\\$]+""")
_REST = ('"$@"', '"$*"', "$@", "$*")
_ENDS = ";&|\n<>()"
MAX_EXPANDED = 1 << 20
"""Characters that variables may come to in one text."""


def render(request: ExportRequest) -> Exported:
    """A POSIX script; what it is called with goes on to llama-server, and wins there."""
    remarks = request_remarks(request)
    words = serving(with_absolute_paths(request))
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
class Command:
    """One command of a text."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The variables that are set when it is reached, until the next command is asked for."""


def commands(text: str) -> Iterator[Command]:
    """The commands of a text in their order; a quote without its end lasts to the end.

    Raises:
        ImportedFileError: its variables grow beyond all bounds.
    """
    return _Reader(text, {}).commands()


def settings_only(text: str) -> Mapping[str, str]:
    """The variables of a text without commands, as in an environment file; none where it has one.

    Raises:
        ImportedFileError: its variables grow beyond all bounds.
    """
    reader = _Reader(text, {})
    return {} if any(reader.commands()) else reader.variables


@dataclass(slots=True)
class _Reader:
    text: str
    variables: dict[str, str]
    index: int = 0
    word: list[str] = field(default_factory=list)
    has_word: bool = False
    n_expanded: int = 0

    def commands(self) -> Iterator[Command]:
        words: list[str] = []
        while self.index < len(self.text):
            character = self.text[self.index]
            if character in '"$' and self._skips_rest():
                continue
            if character in _ENDS or character in " \t\r":
                self._end_word(words)
                self.index += 1
                if character in _ENDS:
                    yield from self._command(words)
                    words = []
            elif character == "#" and not self.has_word:
                self._skip_line()
            else:
                self._take(character)
        self._end_word(words)
        yield from self._command(words)

    def _command(self, words: list[str]) -> Iterator[Command]:
        """A command; words that only set variables set them."""
        local: dict[str, str] = {}
        for index, word in enumerate(words):
            if match := _ASSIGNMENT.fullmatch(word):
                local[match[1]] = match[2]
            elif word != "export":
                yield Command(tuple(words[index:]), ChainMap(local, self.variables))
                return
        self.variables.update(local)

    def _skips_rest(self) -> bool:
        """Skip the script's own arguments."""
        if self.has_word:
            return False
        for mark in _REST:
            if self.text.startswith(mark, self.index):
                self.index += len(mark)
                return True
        return False

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.index)
        self.index = len(self.text) if end < 0 else end

    def _take(self, character: str) -> None:
        match character:
            case "'":
                self._take_quoted_plainly()
            case '"':
                self._take_quoted()
            case "\\":
                self._take_escaped()
            case "$":
                self._take_variable()
            case _:
                self._take_run(_PLAIN)

    def _take_run(self, characters: re.Pattern[str]) -> None:
        """Take what means itself, one character at least."""
        run = characters.match(self.text, self.index)
        end = run.end() if run else self.index + 1
        self._add(self.text[self.index : end])
        self.index = end

    def _take_quoted_plainly(self) -> None:
        end = self.text.find("'", self.index + 1)
        end = len(self.text) if end < 0 else end
        self._add(self.text[self.index + 1 : end])
        self.index = end + 1

    def _take_quoted(self) -> None:
        self.index += 1
        self._add("")
        while self.index < len(self.text) and self.text[self.index] != '"':
            character = self.text[self.index]
            following = self.text[self.index + 1 : self.index + 2]
            if character == "\\" and following and following in '"\\$`\n':
                self._add("" if following == "\n" else following)
                self.index += 2
            elif character == "$":
                self._take_variable()
            else:
                self._take_run(_QUOTED)
        self.index += 1

    def _take_escaped(self) -> None:
        following = self.text[self.index + 1 : self.index + 2]
        if following == "\r":  # a line that ends as on Windows
            following = self.text[self.index + 1 : self.index + 3]
        if not following.endswith("\n"):
            self._add(following)
        self.index += 1 + len(following)

    def _take_variable(self) -> None:
        match = _VARIABLE.match(self.text, self.index)
        name = match[1] or match[2] if match else None
        if match is None or name not in self.variables:
            self._add("$")
            self.index += 1
            return
        value = self.variables[name]
        self.n_expanded += len(value)
        if self.n_expanded > MAX_EXPANDED:
            raise ImportedFileError(
                f"the variables of this text come to more than {MAX_EXPANDED:,} characters: give "
                "the command with its values written out"
            )
        self._add(value)
        self.index = match.end()

    def _add(self, text: str) -> None:
        self.word.append(text)
        self.has_word = True

    def _end_word(self, words: list[str]) -> None:
        if self.has_word:
            words.append("".join(self.word))
        self.word.clear()
        self.has_word = False


FORMAT = Format(
    "shell",
    "shell script that starts llama-server",
    named_file(".sh"),
    render,
    flag_sets=tuple(FLAG_SETS),
    read=read,
)
