"""What the caller's functions get and give."""

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Tokens

import numpy as np
from numpy.typing import ArrayLike

from engine.backends.base import Logits
from engine.errors import DecodeError
from engine.speculation.predictors.base import DraftToken

DraftCallback = Callable[[Tokens[int], int], Iterable[int | DraftToken]]
"""Called with the line and the most tokens that are wanted; gives guesses, best as a generator:
it is left as soon as enough is drafted. A plain number is a guess of no known confidence."""

TargetCallback = Callable[[Tokens[int], Tokens[int]], ArrayLike]
"""Called with the line and a draft; gives `[len(draft) + 1, n_vocab]` logits: row `i` is what the
model says behind the line and the first `i` drafted tokens. A caller that keeps a cache finds in
the length of the line how much of the last draft was accepted."""

UNKNOWN_CONFIDENCE = 0.5


class CallbackPredictor:
    """Makes a predictor of a draft function."""

    name = "callback"

    def __init__(self, draft: DraftCallback) -> None:
        self._draft = draft
        self._line: list[int] = []
        self.n_wanted = 1
        """Most tokens that the next proposal is asked for."""

    def reset(self, history: Tokens[int]) -> None:
        self._line = list(history)

    def commit(self, tokens: Tokens[int]) -> None:
        self._line.extend(tokens)

    def propose(self) -> Iterator[DraftToken]:
        if not self._line:
            return
        for guess in self._draft(tuple(self._line), self.n_wanted):
            if isinstance(guess, DraftToken):
                yield guess
            else:
                yield DraftToken(guess, UNKNOWN_CONFIDENCE)

    def close(self) -> None:
        self._line = []


def called(target: TargetCallback, line: Tokens[int], draft: Tokens[int], n_vocab: int) -> Logits:
    """Call the target function and give its `[len(draft) + 1, n_vocab]` float32 logits.

    Raises:
        DecodeError: it gave another shape, or a row in which no token can be drawn.
    """
    given = np.asarray(target(tuple(line), tuple(draft)))
    wanted = (len(draft) + 1, n_vocab)
    if given.shape != wanted or not np.issubdtype(given.dtype, np.number):
        raise DecodeError(
            f"the target function gave {given.dtype} of shape {list(given.shape)}: "
            f"{list(wanted)} logits are wanted, one row behind the line and one behind each of "
            f"the {len(draft)} drafted tokens"
        )
    logits: Logits = given.astype(np.float32, copy=False)
    if np.isnan(logits).any() or not np.isfinite(logits.max(axis=1)).all():
        raise DecodeError("the target function gave a row of logits with NaN or without a largest")
    return logits
