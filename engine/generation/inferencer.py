"""Prefill and decode as two calls that return tokens and logits, for any backend.

For scripts that need the logits of every token, such as research loops and cache tests; chats use
`Session`. The contracts are those of naive_speculate's `infer`; a `Sampler` is its sample strategy,
a `Sequence` its cache.
"""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass

import numpy as np

from engine.backends.base import Backend, Logits, Sequence
from engine.errors import ModelFileError, PresetError
from engine.sampling import Sampler


@dataclass(frozen=True, slots=True)
class PrefillOutput:
    """Result of a prefill."""

    token_ids: tuple[int, ...]
    """One token, sampled from the last row."""
    token_logits: Logits
    """`[n_query, n_vocab]` float32: row `i` are the logits after query token `i`."""


@dataclass(frozen=True, slots=True)
class DecodeOutput:
    """Result of a decode."""

    token_ids: tuple[int, ...]
    """Generated tokens; generation stops after an end token."""
    token_logits: Logits
    """`[n_generated, n_vocab]` float32: token `i` was sampled from row `i`."""


class Inferencer:
    """Computes tokens in sequences of a backend; each call appends to the given sequence."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @property
    def eos_token_id(self) -> int:
        """The end token of the model file.

        Raises:
            ModelFileError: the file defines none.
        """
        eos = self._backend.vocabulary.eos
        if eos is None:
            raise ModelFileError(
                "the model file defines no end token (tokenizer.ggml.eos_token_id): replies "
                "end only at max_new_tokens or at a stop string"
            )
        return eos

    def prefill(self, query: Tokens[int], sequence: Sequence, sampler: Sampler) -> PrefillOutput:
        """Compute all rows of a query and sample the next token.

        The sequence then holds the query; the sampled token is the query of the next call.
        Raises `PresetError` for an empty query, and `ContextFullError`.
        """
        if not query:
            raise PresetError("the query is empty: pass at least one token")
        n_rows = self._backend.n_rows
        batches = (query[start : start + n_rows] for start in range(0, len(query), n_rows))
        rows = np.concatenate([sequence.verify(batch).logits.copy() for batch in batches])
        token = sampler.sample(rows[-1], sequence.tokens, len(sequence.tokens))
        return PrefillOutput((token,), rows)

    def decode(
        self, query: int, sequence: Sequence, sampler: Sampler, *, max_new_tokens: int
    ) -> DecodeOutput:
        """Compute the last call's token and generate after it, one token at a time.

        The sequence then holds the query and the generated tokens except the last. Raises
        `PresetError` for a `max_new_tokens` below 1, and `ContextFullError`.
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
