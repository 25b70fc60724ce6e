"""How many rows of a batch come out as each would alone.

Kernels for several rows may round otherwise than the kernel for one, and what they write into the
cache carries it on: on llama.cpp's repacked kernels for four rows and more a row decoded alone on
such a cache is as far from plain decoding's as the batch's own (measured on Zen 3 with Q4_K at
commit 0c1e57098). Up to some number of rows, kernels often agree to the bit; drafts of that size
leave the text as it is.
"""

from collections.abc import Sequence as Tokens

import numpy as np

from engine.backends.base import Logits, Sequence

LADDER = (2, 3, 4, 5, 8, 9, 16, 17)
"""Rows that are tried: kernels change their way at powers of two."""


def exact_rows(sequence: Sequence, tokens: Tokens[int], n_max: int) -> int:
    """Give the most rows, up to `n_max`, of batches that are to the bit what each row is alone.

    Any tokens will do. The sequence is empty afterwards, so that whatever follows is computed as if
    nothing had been tried.

    Raises:
        DecodeAborted: stopped in between.
        DecodeError: the backend failed.
    """
    sequence.crop(0)
    alone: list[Logits] = []
    n_exact = 1
    for n_rows in (n for n in LADDER if n <= min(n_max, len(tokens))):
        # What is held is a batch that agreed with plain steps, so plain steps go on behind it.
        alone += [sequence.decode(token).logits[0].copy() for token in tokens[len(alone) : n_rows]]
        sequence.crop(0)
        if not all(map(np.array_equal, sequence.verify(tokens[:n_rows]).logits, alone)):
            break
        n_exact = n_rows
    sequence.crop(0)
    return n_exact
