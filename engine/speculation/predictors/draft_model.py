"""Drafting with a smaller model of the same vocabulary."""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens

import numpy as np

from engine.backends.base import Logits, Sequence, rewind
from engine.configuration import MAX_DRAFT, SpeculationSettings
from engine.sampling import Sampler
from engine.speculation.predictors.base import DraftToken
from engine.speculation.verify import draw_draft

MAX_MISSED = 32
"""Tokens that a draft model catches up with after it was not asked; it skips earlier ones. Its
drafts are worse then, but the text is the same."""


class DraftModelPredictor:
    """Decodes a draft model ahead of its target (Leviathan et al. 2022, arXiv 2211.17192).

    Invariant: the draft's sequence holds a prefix of its view without the last token, followed only
    by drafted tokens of the last round; the next `propose` crops those and catches up in batches.
    The view is the committed text without the tokens that it skipped, and its last half context if
    it exceeds the context. The sampler is the target's.

    The vocabularies were checked before (`pairs.check_pair`); the sequence outlives the predictor,
    so that the next reply reuses the prefix.
    """

    name = "draft"

    def __init__(
        self,
        sequence: Sequence,
        sampler: Sampler,
        settings: SpeculationSettings,
        *,
        n_ctx: int,
        n_batch: int,
        n_vocab: int,
    ) -> None:
        self._sequence, self._sampler, self._settings = sequence, sampler, settings
        self._n_ctx, self._n_batch, self._n_vocab = n_ctx, n_batch, n_vocab
        self._text: list[int] = []
        self._view: list[int] = []
        self._n_missed = 0
        """Tokens at the end of the view since the last draft; 0 before the first one."""
        self._n_agreed = 0
        """Leading tokens of the view that the sequence holds for certain."""

    def reset(self, history: Tokens[int]) -> None:
        self._text, self._view, self._n_agreed = [], [], 0
        self.commit(history)
        self._n_missed = 0

    def commit(self, tokens: Tokens[int]) -> None:
        self._text += tokens
        usable = tokens
        if tokens and not (min(tokens) >= 0 and max(tokens) < self._n_vocab):
            # Only those after the last one of an image or outside the draft's vocabulary.
            n = next(n for n in range(len(tokens), 0, -1) if not 0 <= tokens[n - 1] < self._n_vocab)
            usable = tokens[n:]
        if len(usable) < len(tokens):
            self._view, self._n_missed, self._n_agreed = [], 0, 0
        self._view += usable
        self._n_missed += len(usable)

    def propose(self) -> Iterator[DraftToken]:
        if not self._view:
            return
        logits = self._catch_up()
        text = list(self._text)
        settings, n_certain = self._settings, len(self._text) + self._settings.draft_min_tokens
        while True:
            drafted = self._drawn(logits, text)
            is_optional = len(text) >= n_certain
            if is_optional and drafted.confidence < settings.draft_min_confidence:
                return
            yield drafted
            if len(self._sequence.tokens) >= self._n_ctx:
                return
            text.append(drafted.token)
            logits = self._sequence.decode(drafted.token).logits[0]

    def _catch_up(self) -> Logits:
        """Decode the tokens committed since the last round; return the last token's logits."""
        if self._n_missed > MAX_MISSED:
            del self._view[-self._n_missed : -MAX_MISSED]
        n_max = max(self._n_ctx - MAX_DRAFT, self._n_ctx // 2)
        if len(self._view) > n_max:
            self._view, self._n_agreed = self._view[-max(n_max // 2, 1) :], 0
        known = self._view[:-1]
        held = rewind(self._sequence, known, known=self._n_agreed)
        for start in range(held, len(known), self._n_batch):
            self._sequence.prefill(known[start : start + self._n_batch])
        self._n_agreed, self._n_missed = len(known), 0
        logits: Logits = self._sequence.decode(self._view[-1]).logits[0]
        return logits

    def _drawn(self, logits: Logits, text: Tokens[int]) -> DraftToken:
        usable = logits[: self._n_vocab]
        token, distribution = draw_draft(
            usable,
            self._sampler,
            text,
            round_start=len(self._text),
            position=len(text),
            verification=self._settings.verification,
        )
        # Dropping a token for its own probability would bias the distribution.
        trusted = token if distribution is None else int(usable.argmax())
        return DraftToken(token, probability(usable, trusted), distribution)


def probability(logits: Logits, token: int) -> float:
    """Softmax probability of a token at temperature 1 from `[n_vocab]` logits."""
    largest = logits.max()
    return float(np.exp(logits[token] - largest) / np.exp(logits - largest).sum())
