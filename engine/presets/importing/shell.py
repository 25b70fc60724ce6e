"""Commands out of a shell's text: quotes, continued lines, comments, variables.

A small part of POSIX sh (IEEE 1003.1-2024, chapter 2): nothing is run, nothing is expanded but
variables that the text itself sets.
"""

import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from engine.presets.importing.imported import ImportedFileError

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_PLAIN = re.compile(r"""[^\s;&|<>()'"\\$#]+""")
_QUOTED = re.compile(r"""[^"\\$]+""")
_REST = ('"$@"', '"$*"', "$@", "$*")
_ENDS = ";&|\n<>()"
MAX_EXPANDED = 1 << 20
"""Characters that variables may come to in one text."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a text."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    """The variables that stand when it is reached, until the next command is asked for."""


@dataclass(slots=True)
class _Reader:
    text: str
    variables: dict[str, str]
    place: int = 0
    word: list[str] = field(default_factory=list)
    has_word: bool = False
    n_expanded: int = 0

    def commands(self) -> Iterator[Command]:
        words: list[str] = []
        while self.place < len(self.text):
            character = self.text[self.place]
            if character in '"$' and self._skips_rest():
                continue
            if character in _ENDS or character in " \t\r":
                self._end_word(words)
                self.place += 1
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
        """Give a command; words that only set variables set them."""
        local: dict[str, str] = {}
        for place, word in enumerate(words):
            if match := _ASSIGNMENT.fullmatch(word):
                local[match[1]] = match[2]
            elif word != "export":
                yield Command(tuple(words[place:]), ChainMap(local, self.variables))
                return
        self.variables.update(local)

    def _skips_rest(self) -> bool:
        """Skip what stands for the script's own arguments."""
        if self.has_word:
            return False
        for mark in _REST:
            if self.text.startswith(mark, self.place):
                self.place += len(mark)
                return True
        return False

    def _skip_line(self) -> None:
        end = self.text.find("\n", self.place)
        self.place = len(self.text) if end < 0 else end

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
        run = characters.match(self.text, self.place)
        end = run.end() if run else self.place + 1
        self._add(self.text[self.place : end])
        self.place = end

    def _take_quoted_plainly(self) -> None:
        end = self.text.find("'", self.place + 1)
        end = len(self.text) if end < 0 else end
        self._add(self.text[self.place + 1 : end])
        self.place = end + 1

    def _take_quoted(self) -> None:
        self.place += 1
        self._add("")
        while self.place < len(self.text) and self.text[self.place] != '"':
            character = self.text[self.place]
            following = self.text[self.place + 1 : self.place + 2]
            if character == "\\" and following and following in '"\\$`\n':
                self._add("" if following == "\n" else following)
                self.place += 2
            elif character == "$":
                self._take_variable()
            else:
                self._take_run(_QUOTED)
        self.place += 1

    def _take_escaped(self) -> None:
        following = self.text[self.place + 1 : self.place + 2]
        if following == "\r":  # a line that ends as on Windows
            following = self.text[self.place + 1 : self.place + 3]
        if not following.endswith("\n"):
            self._add(following)
        self.place += 1 + len(following)

    def _take_variable(self) -> None:
        match = _VARIABLE.match(self.text, self.place)
        name = match[1] or match[2] if match else None
        if match is None or name not in self.variables:
            self._add("$")
            self.place += 1
            return
        value = self.variables[name]
        self.n_expanded += len(value)
        if self.n_expanded > MAX_EXPANDED:
            raise ImportedFileError(
                f"the variables of this text come to more than {MAX_EXPANDED:,} characters: give "
                "the command with its values written out"
            )
        self._add(value)
        self.place = match.end()

    def _add(self, text: str) -> None:
        self.word.append(text)
        self.has_word = True

    def _end_word(self, words: list[str]) -> None:
        if self.has_word:
            words.append("".join(self.word))
        self.word.clear()
        self.has_word = False


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
