"""Prefill and decoding as two calls that give tokens and logits together, over any backend.

For scripts that look at every row: a research loop, a test of a cache. Chats are made by `Session`,
which reads prompts without logits and drafts. The contracts are those of naive_speculate's `infer`;
a `Sampler` is its sample strategy, a `Sequence` its cache.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np

from engine.backends.base import Backend, Logits, Sequence
from engine.errors import ModelFileError, PresetError
from engine.sampling import Sampler


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """What is said behind a query."""

    token_ids: tuple[int, ...]
    """One: the token that was drawn from the last row."""
    token_logits: Logits
    """`[n_query, n_vocab]` float32: row `i` is what may follow the query's first `i + 1` tokens."""


@dataclass(frozen=True, slots=True)
class DecodeOutput:
    """Tokens that were generated, and what each was drawn from."""

    token_ids: tuple[int, ...]
    """An end token among them is the last."""
    token_logits: Logits
    """`[n_generated, n_vocab]` float32: token `i` was drawn from row `i`."""


class Inferencer:
    """Computes tokens into sequences of a backend; each call goes on behind what they hold."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def eos_token_id(self) -> int:
        """The end token that the model's file names.

        Raises:
            ModelFileError: it names none.
        """
        eos = self._backend.vocabulary.eos
        if eos is None:
            raise ModelFileError(
                "the model file defines no end token (tokenizer.ggml.eos_token_id): replies "
                "end only at max_new_tokens or at a stop string"
            )
        return eos

    def prefill(self, query: Tokens[int], sequence: Sequence, sampler: Sampler) -> PrefillOutput:
        """Compute a query, all of its rows, and draw the token behind it.

        The sequence then holds the query; what was drawn is the query of the next call.

        Raises:
            PresetError: the query is empty.
            ContextFullError: it has more tokens than free cells.
        """
        if not query:
            raise PresetError("the query is empty: pass at least one token")
        rows = np.concatenate(list(self._rows(query, sequence)))
        token = sampler.sample(rows[-1], sequence.tokens, len(sequence.tokens))
        return PrefillOutput((token,), rows)

    def decode(
        self, query: int, sequence: Sequence, sampler: Sampler, *, max_new_tokens: int
    ) -> DecodeOutput:
        """Compute the token of the last call and generate behind it, one token at a time.

        The sequence then holds the query and all that was generated but the last token.

        Raises:
            PresetError: `max_new_tokens` is less than 1.
            ContextFullError: there is no free cell.
        """
        if max_new_tokens < 1:
            raise PresetError(f"max_new_tokens is {max_new_tokens}: it must be at least 1")
        tokens: list[int] = []
        rows: list[Logits] = []
        while len(tokens) < max_new_tokens:
            rows.append(sequence.decode(query).logits[0].copy())
            query = sampler.sample(rows[-1], sequence.tokens, len(sequence.tokens))
            tokens.append(query)
            if self._backend.vocabulary.is_end(query):
                break
        return DecodeOutput(tuple(tokens), np.stack(rows))

    def _rows(self, query: Tokens[int], sequence: Sequence) -> Iterator[Logits]:
        n_rows = self._backend.n_rows
        for start in range(0, len(query), n_rows):
            yield sequence.verify(query[start : start + n_rows]).logits.copy()
