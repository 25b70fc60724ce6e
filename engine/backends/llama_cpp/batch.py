"""A llama.cpp batch that is filled again and again without allocating."""

from collections.abc import Sequence as Tokens

import llama_cpp
import numpy as np


class Batch:
    """At most `capacity` tokens of one sequence."""

    def __init__(self, capacity: int, sequence_id: int) -> None:
        self.native = llama_cpp.llama_batch_init(capacity, 0, 1)
        self._tokens = np.ctypeslib.as_array(self.native.token, (capacity,))
        self._positions = np.ctypeslib.as_array(self.native.pos, (capacity,))
        self._wants_logits = np.ctypeslib.as_array(self.native.logits, (capacity,))
        self._steps = np.arange(capacity, dtype=np.int32)
        np.ctypeslib.as_array(self.native.n_seq_id, (capacity,))[:] = 1
        for index in range(capacity):
            self.native.seq_id[index][0] = sequence_id

    def fill(self, tokens: Tokens[int], position: int, *, n_rows: int) -> None:
        """Put tokens at consecutive positions; the last `n_rows` are flagged for logits."""
        n = len(tokens)
        self.native.n_tokens = n
        self._tokens[:n] = tokens
        self._positions[:n] = self._steps[:n] + position
        self._wants_logits[: n - n_rows] = False
        self._wants_logits[n - n_rows : n] = True

    def close(self) -> None:
        """Free the native arrays."""
        llama_cpp.llama_batch_free(self.native)
