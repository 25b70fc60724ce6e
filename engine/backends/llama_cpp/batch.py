"""A llama.cpp batch that is filled again and again.

Through memory views: a few values are written sooner than through NumPy.
"""

from array import array
from collections.abc import Sequence as Tokens
from typing import Any, Literal

import llama_cpp
import numpy as np

INT32: Literal["i"] = "i"
INT8: Literal["b"] = "b"


class Batch:
    """At most `capacity` tokens of one sequence."""

    def __init__(self, capacity: int, sequence_id: int) -> None:
        self.native = llama_cpp.llama_batch_init(capacity, 0, 1)
        self._tokens = _memory(self.native.token, capacity, INT32)
        self._positions = _memory(self.native.pos, capacity, INT32)
        self._wants_logits = _memory(self.native.logits, capacity, INT8)
        for index in range(capacity):
            self.native.n_seq_id[index] = 1
            self.native.seq_id[index][0] = sequence_id

    def fill(self, tokens: Tokens[int], position: int, *, n_rows: int) -> None:
        """Put tokens at consecutive positions; the last `n_rows` are flagged for logits."""
        n = len(tokens)
        self.native.n_tokens = n
        self._tokens[:n] = array(INT32, tokens)
        self._positions[:n] = array(INT32, range(position, position + n))
        self._wants_logits[:n] = array(INT8, (n - n_rows) * b"\0" + n_rows * b"\1")

    def close(self) -> None:
        """Free the native arrays."""
        llama_cpp.llama_batch_free(self.native)


def _memory(pointer: Any, capacity: int, kind: Literal["i", "b"]) -> "memoryview[int]":
    values = np.ctypeslib.as_array(pointer, (capacity,))
    return values.view(np.uint8).data.cast(kind)
