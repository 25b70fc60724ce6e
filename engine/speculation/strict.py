"""How many rows of a batch come out as each would alone.

Kernels for several rows may round otherwise than the kernel for one, and what they write into the
cache carries it on: on llama.cpp's repacked kernels for four rows and more a row decoded alone on
such a cache is as far from plain decoding's as the batch's own (measured on Zen 3 with Q4_K at
commit 0c1e57098). Up to some number of rows, kernels often agree to the bit; drafts of that size
leave the text as it is. How many depends on how much is held: the same commit splits the attention
of one row, and of one row only, from 512 cells on, counted in blocks of 256 (`ggml-cpu/ops.cpp`):
behind 256 tokens no batch is exact there.
"""

from collections.abc import Sequence as Tokens
from itertools import cycle, islice

import numpy as np

from engine.backends.base import Logits, Sequence

LADDER = (2, 3, 4, 5, 8, 9, 16, 17)
"""Rows that are tried: kernels change their way at powers of two."""


CELLS = 256
"""llama.cpp counts the cells of a cache in such blocks when it chooses its kernels."""


class Exactness:
    """Exact rows by how much is held, measured behind the line that is drafted for.

    Measured anew where what is held has doubled. No draft reaches into the next block of cells,
    whose kernels may be others.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}

    def measure(self, sequence: Sequence, tokens: Tokens[int], n_rows: int) -> None:
        """Measure where nothing is known of this depth and a batch of `n_rows` fits its block.

        Args:
            sequence: What it holds is as before afterwards.
            tokens: Any, taken again and again where they are fewer than `n_rows`.
            n_rows: Most rows of a batch.

        Raises:
            DecodeAborted: stopped in between; what is held is as before.
            DecodeError: the backend failed.
        """
        held = len(sequence.tokens)
        if _depth(held) not in self._rows and n_rows <= _room(held):
            rows = tuple(islice(cycle(tokens), n_rows))
            self._rows[_depth(held)] = exact_rows(sequence, rows, n_rows)

    def most_drafted(self, held: int) -> int | None:
        """The longest draft whose batch rounds as plain steps; None where no batch does."""
        known = self._rows.get(_depth(held))
        if known is None:
            return 0
        return None if known == 1 else min(known, _room(held)) - 1


def _depth(held: int) -> int:
    return (held // CELLS).bit_length()


def _room(held: int) -> int:
    return CELLS - held % CELLS


def exact_rows(sequence: Sequence, tokens: Tokens[int], n_max: int) -> int:
    """The most rows, up to `n_max`, of batches that are to the bit what each row is alone.

    Any tokens will do. What was held is held afterwards, so that whatever follows is computed as if
    nothing had been tried.

    Raises:
        DecodeAborted: stopped in between.
        DecodeError: the backend failed.
    """
    start = len(sequence.tokens)
    try:
        return _exact_rows(sequence, tokens, n_max)
    finally:
        if len(sequence.tokens) > start:
            sequence.crop(start)


def _exact_rows(sequence: Sequence, tokens: Tokens[int], n_max: int) -> int:
    start = len(sequence.tokens)
    alone: list[Logits] = []
    n_exact = 1
    for n_rows in (n for n in LADDER if n <= min(n_max, len(tokens))):
        # What is held is a batch that agreed with plain steps, so plain steps go on behind it.
        alone += [sequence.decode(token).logits[0].copy() for token in tokens[len(alone) : n_rows]]
        sequence.crop(start)
        if not all(map(np.array_equal, sequence.verify(tokens[:n_rows]).logits, alone)):
            break
        n_exact = n_rows
    return n_exact
