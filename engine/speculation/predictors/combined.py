"""Several predictors for one line: each round the one drafts that expects most."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from engine.configuration import MAX_DRAFT
from engine.speculation.predictors.base import CatchesUp, DraftToken, Predictor


class CombinedPredictor:
    """Lets predictors that read the chat compete, and others guess where these are silent.

    A reader's draft is taken as far as the product of its confidences, the chance that all of it is
    right, stays at `min_confidence` or above. The sum of those products is the number of tokens
    that it expects to be accepted, and the largest sum drafts: the rule by which suffix decoding
    (Oliaro et al. 2024, arXiv 2411.04975) chooses between its trees. `followers` are asked in turn
    where no reader has a draft, and pulled one guess at a time: a draft model has to decode to know
    what it expects.
    """

    name = "combined"
    asks_sources = True

    def __init__(
        self,
        readers: Sequence[Predictor],
        *,
        min_confidence: float,
        followers: Sequence[Predictor] = (),
    ) -> None:
        self._readers = tuple(readers)
        self._min_confidence = min_confidence
        self._followers = tuple(followers)
        self._may_ask: Callable[[str], bool] = _always

    def gate(self, may_ask: Callable[[str], bool]) -> None:
        self._may_ask = may_ask

    def limit_catch_up(self, affords: Callable[[int], bool]) -> None:
        for source in self._sources():
            if isinstance(source, CatchesUp):
                source.limit_catch_up(affords)

    def reset(self, history: Sequence[int]) -> None:
        for source in self._sources():
            source.reset(history)

    def commit(self, tokens: Sequence[int]) -> None:
        for source in self._sources():
            source.commit(tokens)

    def propose(self) -> Iterator[DraftToken]:
        best: list[DraftToken] = []
        most_expected = 0.0
        for reader in self._readers:
            if not self._may_ask(reader.name):
                continue
            draft, expected = likely_part(reader.propose(), self._min_confidence)
            if expected > most_expected:
                best, most_expected = _named(draft, reader), expected
        if best:
            yield from best
            return
        for follower in self._followers:
            if not self._may_ask(follower.name):
                continue
            is_silent = True
            for guess in follower.propose():
                is_silent = False
                yield replace(guess, source=follower.name)
            if not is_silent:
                return

    def close(self) -> None:
        for source in self._sources():
            source.close()

    def _sources(self) -> tuple[Predictor, ...]:
        return self._readers + self._followers


def _always(_: str) -> bool:
    return True


def likely_part(
    proposed: Iterator[DraftToken], min_confidence: float
) -> tuple[list[DraftToken], float]:
    """Give the guesses up to where all are right with `min_confidence`, and how many will be."""
    draft: list[DraftToken] = []
    chance, expected = 1.0, 0.0
    for guess in islice(proposed, MAX_DRAFT):
        chance *= guess.confidence
        if chance < min_confidence:
            break
        expected += chance
        draft.append(guess)
    return draft, expected


def _named(draft: list[DraftToken], source: Predictor) -> list[DraftToken]:
    return [replace(guess, source=source.name) for guess in draft]
