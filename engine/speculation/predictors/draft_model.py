"""Drafting with a smaller model of the same vocabulary."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens

import numpy as np

from engine.backends.base import Logits, Sequence, common_prefix, rewind
from engine.configuration import MAX_DRAFT, Verification
from engine.sampling import Sampler
from engine.speculation.predictors.base import DraftToken
from engine.speculation.verify import draw_draft

RESTART = 32
"""Last tokens that a draft model reads if it missed more than it may catch up with. Its guesses are
worse then, but the text is the same."""


class DraftModelPredictor:
    """Decodes a draft model ahead of its target (Leviathan et al. 2022, arXiv 2211.17192).

    Invariant: the draft's sequence holds a prefix of its view without the last token, followed only
    by drafted tokens of the last round; the next `propose` crops those and catches up in batches.
    The view is the committed text. If that exceeds the draft's context, the view starts half a
    context before its end. If more tokens were missed than may be decoded (`affords_catch_up`), it
    omits those between the sequence's end and the last `RESTART` tokens until a catch-up is
    allowed. The sampler is the target's.

    The vocabularies were checked before (`pairs.check_pair`); the sequence outlives the predictor,
    so that the next reply reuses the prefix.
    """

    name = "draft"

    def __init__(
        self,
        sequence: Sequence,
        sampler: Sampler,
        *,
        n_ctx: int,
        n_batch: int,
        n_vocab: int,
        min_tokens: int,
        min_confidence: float,
        verification: Verification = "coupled",
        affords_catch_up: Callable[[int], bool] = lambda _: True,
    ) -> None:
        self._sequence = sequence
        self._sampler = sampler
        self._n_ctx = n_ctx
        self._n_batch = n_batch
        self._n_vocab = n_vocab
        self._min_tokens = min_tokens
        self._min_confidence = min_confidence
        self._verification = verification
        self._affords = affords_catch_up
        self._line: list[int] = []
        self._start = 0
        self._hole: tuple[int, int] | None = None
        self._n_agreed = 0
        self._line_with_draft: list[int] = []

    def reset(self, history: Tokens[int]) -> None:
        self._line = []
        self._start, self._hole, self._n_agreed = 0, None, 0
        self.commit(history)

    def commit(self, tokens: Tokens[int]) -> None:
        self._line.extend(tokens)
        if n_foreign := self._n_foreign(tokens):
            self._start = len(self._line) - len(tokens) + n_foreign
            self._hole, self._n_agreed = None, 0

    def propose(self) -> Iterator[DraftToken]:
        if self._start >= len(self._line):
            return
        logits = self._catch_up()
        n_drafted = 0
        while True:
            drafted = self._guess(logits, n_drafted)
            if self._is_too_weak(drafted, n_drafted):
                return
            yield drafted
            n_drafted += 1
            if len(self._sequence.tokens) >= self._n_ctx:
                return
            self._line_with_draft.append(drafted.token)
            logits = self._sequence.decode(drafted.token).logits[0]

    def close(self) -> None:
        self._line = []

    def _n_foreign(self, tokens: Tokens[int]) -> int:
        """Number of tokens up to the last one of an image or outside the draft's vocabulary."""
        if not tokens or (min(tokens) >= 0 and max(tokens) < self._n_vocab):
            return 0
        return next(n for n in range(len(tokens), 0, -1) if not 0 <= tokens[n - 1] < self._n_vocab)

    def _catch_up(self) -> Logits:
        """Decode the tokens committed since the last round; return the last token's logits."""
        self._choose_view()
        known = self._view()[:-1]
        held = rewind(self._sequence, known, known=self._n_agreed)
        for start in range(held, len(known), self._n_batch):
            self._sequence.prefill(known[start : start + self._n_batch])
        self._n_agreed = len(known)
        self._line_with_draft = list(self._line)
        logits: Logits = self._sequence.decode(self._line[-1]).logits[0]
        return logits

    def _choose_view(self) -> None:
        """Choose the tokens that the draft model reads in this round."""
        n_max = max(self._n_ctx - MAX_DRAFT, self._n_ctx // 2)
        if len(self._line) - self._start > n_max:
            self._start = max(len(self._line) - max(n_max // 2, 1), 0)
            self._hole, self._n_agreed = None, 0
        if self._hole is not None:
            begin, _ = self._hole
            if self._affords(len(self._line) - begin):
                self._hole, self._n_agreed = None, begin - self._start
                return
            if len(self._view()) - self._held() > RESTART:
                self._hole, self._n_agreed = (begin, len(self._line) - RESTART), begin - self._start
            return
        held = self._held()
        n_missing = len(self._line) - self._start - held
        if n_missing > RESTART and not self._affords(n_missing):
            self._hole = (self._start + held, len(self._line) - RESTART)
            self._n_agreed = held

    def _view(self) -> list[int]:
        if self._hole is None:
            return self._line[self._start :]
        begin, end = self._hole
        return self._line[self._start : begin] + self._line[end:]

    def _held(self) -> int:
        """Leading tokens of the view that the sequence holds."""
        return common_prefix(self._sequence.tokens, self._view()[:-1], known=self._n_agreed)

    def _guess(self, logits: Logits, n_drafted: int) -> DraftToken:
        usable = logits[: self._n_vocab]
        start = len(self._line)
        made = draw_draft(
            usable,
            self._sampler,
            self._line_with_draft,
            round_start=start,
            position=start + n_drafted,
            verification=self._verification,
        )
        # Dropping a token for its own probability would bias the distribution.
        trusted = made.token if made.distribution is None else int(usable.argmax())
        return DraftToken(made.token, probability(usable, trusted), made.distribution)

    def _is_too_weak(self, drafted: DraftToken, n_drafted: int) -> bool:
        return n_drafted >= self._min_tokens and drafted.confidence < self._min_confidence


def probability(logits: Logits, token: int) -> float:
    """Softmax probability of a token at temperature 1 from `[n_vocab]` logits."""
    largest = logits.max()
    return float(np.exp(logits[token] - largest) / np.exp(logits - largest).sum())
