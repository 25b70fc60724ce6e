"""What a user looks for: words that a message must hold, and phrases in quotes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

MAX_TERMS = 32
"""Runs of three characters of a query that the index is asked for; the text decides the rest."""
MAX_BORDERS = 8
"""Places between the words of phrases that it is asked for."""
BLANKS = " \n\t\r\xa0\u3000"
"""What may stand between the words of a phrase, any number of times."""
TERM_LENGTH = 3
"""Characters of a term of the index, which SQLite's trigram tokenizer makes."""

# Scripts that put no space between words have no border that a phrase could be held to.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff"
_IN_WORD = re.compile(rf"[^\W{_UNSPACED}]")
_BETWEEN = f"[{BLANKS}]+"
_PIECE = re.compile(r'"([^"]*)"?|([^\s"]+)')


@dataclass(frozen=True)
class Wanted:
    """One thing that a message must hold."""

    words: tuple[str, ...]
    """One word, or those of a phrase, which follow one another with any blanks between."""
    is_phrase: bool = False
    """Whether it begins and ends where a word does; a plain word is found inside others too."""

    def is_in(self, lowered: str) -> bool:
        """Whether a text that is given in small letters holds it."""
        if not all(word in lowered for word in self._lowered):
            return False
        return not self.is_phrase or any(True for _ in self._places(self._lowered_pattern, lowered))

    def places(self, text: str) -> Iterator[tuple[int, int]]:
        """Give where it lies in `text`: start and end of each place."""
        return self._places(self._pattern, text)

    def _places(self, pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
        spans = (match.span() for match in pattern.finditer(text))
        return (span for span in spans if not self.is_phrase or _is_whole(text, *span))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(_BETWEEN.join(map(re.escape, self.words)), re.IGNORECASE)

    @cached_property
    def _lowered(self) -> tuple[str, ...]:
        return tuple(word.lower() for word in self.words)

    # With the case given, the search for the first word is that of a plain string: ten times as
    # fast, which counts where thousands of messages are proposed.
    @cached_property
    def _lowered_pattern(self) -> re.Pattern[str]:
        return re.compile(_BETWEEN.join(map(re.escape, self._lowered)))


@dataclass(frozen=True, slots=True)
class Query:
    """All that a message must hold."""

    wanted: tuple[Wanted, ...]

    def is_in(self, text: str) -> bool:
        """Whether `text` holds everything that is wanted."""
        lowered = text.lower()
        return all(each.is_in(lowered) for each in self.wanted)

    def first(self, text: str) -> int:
        """Give where the first of the wanted things begins in `text`, 0 where none is in it."""
        found = (next(each.places(text), None) for each in self.wanted)
        return min((place[0] for place in found if place is not None), default=0)

    def ranges(self, text: str) -> list[tuple[int, int]]:
        """Give where the wanted things lie in `text`: start and end, in order, none overlapping."""
        found = sorted(place for each in self.wanted for place in each.places(text))
        ranges: list[tuple[int, int]] = []
        for start, end in found:
            if ranges and start <= ranges[-1][1]:
                ranges[-1] = (ranges[-1][0], max(end, ranges[-1][1]))
            else:
                ranges.append((start, end))
        return ranges

    @property
    def short_words(self) -> list[str]:
        """The words that are shorter than a term of the index."""
        return [word for word in self._words() if len(word) < TERM_LENGTH]

    def terms(self) -> list[str]:
        """Give terms of the index that every message with this query in it has."""
        runs = (
            word[start : start + TERM_LENGTH]
            for word in self._words()
            for start in range(len(word) - TERM_LENGTH + 1)
        )
        return list(dict.fromkeys(runs))[:MAX_TERMS]

    def borders(self) -> list[list[str]]:
        """Give, for each two neighbours in a phrase, terms of which a message with it has one."""
        neighbours = (pair for each in self.wanted for pair in pairwise(each.words))
        return [_border(left[-1], right[0]) for left, right in neighbours][:MAX_BORDERS]

    def _words(self) -> Iterator[str]:
        return (word for each in self.wanted for word in each.words)


def parse_query(text: str) -> Query:
    r"""Read what a user typed; no text is an error.

    Words are parts of words too, so the one that is being typed finds already. What stands in
    double quotes is a phrase of whole words; a quote that is never closed reaches to the end.
    """
    wanted = []
    for match in _PIECE.finditer(text.replace("\0", " ")):
        phrase, word = match.groups()
        if word is not None:
            wanted.append(Wanted((word,)))
        elif words := phrase.split():
            wanted.append(Wanted(tuple(words), is_phrase=True))
    return Query(tuple(dict.fromkeys(wanted)))


def _border(left: str, right: str) -> list[str]:
    """Give the terms that a blank or two between two characters make."""
    return [f"{left}{blank}{end}" for blank in BLANKS for end in (right, *BLANKS)]


def _is_whole(text: str, start: int, end: int) -> bool:
    """Whether a place in a text begins and ends where words do."""
    return not (_joins(text, start) or _joins(text, end))


def _joins(text: str, place: int) -> bool:
    """Whether the characters before and behind a place belong to one word."""
    around = text[max(0, place - 1) : place + 1]
    return len(around) == 2 and all(map(_IN_WORD.match, around))


def after(word: str) -> str:
    """Give the least text that follows every text beginning with `word`."""
    code = ord(word[-1]) + 1
    return word[:-1] + chr(0xE000 if code == 0xD800 else min(code, 0x10FFFF))


def quoted(term: str) -> str:
    """Spell a term as a string of FTS5's query language."""
    return '"' + term.replace('"', '""') + '"'
