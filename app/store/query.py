"""What a user looks for: words that a message must hold, and phrases in quotes."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

MAX_TERMS = 32
"""Runs of three characters of a query that the index is asked for; the text decides the rest."""
TERM_LENGTH = 3
"""Characters of a term of the index, which SQLite's trigram tokenizer makes."""

# Scripts that put no space between words have no border that a phrase could be held to.
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff"
_IN_WORD = rf"[^\W{_UNSPACED}]"
_PIECE = re.compile(r'"([^"]*)"?|([^\s"]+)')


@dataclass(frozen=True)
class Wanted:
    """One thing that a message must hold."""

    words: tuple[str, ...]
    """One word, or those of a phrase, which follow one another with any blanks between."""
    is_phrase: bool = False
    """Whether it begins and ends where a word does; a plain word is found inside others too."""

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The expression that finds it, whatever its case."""
        spelled = r"\s+".join(map(re.escape, self.words))
        if self.is_phrase:
            before = f"(?<!{_IN_WORD})" if re.match(_IN_WORD, self.words[0]) else ""
            behind = f"(?!{_IN_WORD})" if re.match(_IN_WORD, self.words[-1][-1]) else ""
            spelled = before + spelled + behind
        return re.compile(spelled, re.IGNORECASE)

    def is_in(self, lowered: str, text: str) -> bool:
        """Whether `text`, also given in small letters, holds it."""
        if not all(word.lower() in lowered for word in self.words):
            return False
        return not self.is_phrase or self.pattern.search(text) is not None


@dataclass(frozen=True, slots=True)
class Query:
    """All that a message must hold."""

    wanted: tuple[Wanted, ...]

    def is_in(self, text: str) -> bool:
        """Whether `text` holds everything that is wanted."""
        lowered = text.lower()
        return all(each.is_in(lowered, text) for each in self.wanted)

    def first(self, text: str) -> int:
        """Give where the first of the wanted things begins in `text`, 0 where none is in it."""
        found = (each.pattern.search(text) for each in self.wanted)
        return min((match.start() for match in found if match), default=0)

    def ranges(self, text: str) -> list[tuple[int, int]]:
        """Give where the wanted things lie in `text`: start and end, in order, none overlapping."""
        found = sorted(
            match.span() for each in self.wanted for match in each.pattern.finditer(text)
        )
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


def after(word: str) -> str:
    """Give the least text that follows every text beginning with `word`."""
    code = ord(word[-1]) + 1
    return word[:-1] + chr(0xE000 if code == 0xD800 else min(code, 0x10FFFF))


def quoted(term: str) -> str:
    """Spell a term as a string of FTS5's query language."""
    return '"' + term.replace('"', '""') + '"'
