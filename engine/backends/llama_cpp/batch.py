"""The input of one `llama_decode`: tokens of one or several sequences."""

import ctypes
from array import array
from collections.abc import Sequence as Tokens
from typing import Any, Literal

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Logits
from engine.errors import DecodeError

INT32: Literal["i"] = "i"
INT8: Literal["b"] = "b"
ID_BYTES = ctypes.sizeof(llama_cpp.llama_seq_id)


class TokenBatch:
    """A batch of at most `capacity` tokens of `n_sequences` sequences.

    This object owns the arrays; llama.cpp only reads them.
    """

    def __init__(self, capacity: int, n_sequences: int) -> None:
        self._tokens, tokens = _memory(capacity, np.dtype(np.int32))
        self._positions, positions = _memory(capacity, np.dtype(np.int32))
        self._wants_logits, wants_logits = _memory(capacity, np.dtype(np.int8))
        self._ids = np.arange(n_sequences, dtype=np.int32)
        self._first_id: int = self._ids.ctypes.data
        self._id_pointers = np.full(capacity, self._first_id, np.uintp)
        self._n_ids = np.ones(capacity, np.int32)
        self._arrays = tokens, positions, wants_logits  # llama.cpp reads their memory
        self.native = llama_cpp.llama_batch(
            n_tokens=0,
            token=_pointer(tokens, llama_cpp.llama_token),
            embd=None,
            pos=_pointer(positions, llama_cpp.llama_pos),
            n_seq_id=_pointer(self._n_ids, ctypes.c_int32),
            seq_id=_pointer(self._id_pointers, ctypes.POINTER(llama_cpp.llama_seq_id)),
            logits=_pointer(wants_logits, ctypes.c_int8),
        )

    def clear(self) -> None:
        """Remove all tokens."""
        self.native.n_tokens = 0

    def add(self, sequence_id: int, tokens: Tokens[int], position: int, *, n_rows: int) -> None:
        """Append tokens of a sequence at consecutive positions; the last `n_rows` get logits."""
        start: int = self.native.n_tokens
        n = len(tokens)
        end = start + n
        self._tokens[start:end] = array(INT32, tokens)
        self._positions[start:end] = array(INT32, range(position, position + n))
        self._wants_logits[start:end] = array(INT8, (n - n_rows) * b"\0" + n_rows * b"\1")
        self._id_pointers[start:end] = self._first_id + ID_BYTES * sequence_id
        self.native.n_tokens = end


class LogitsRows:
    """The rows of logits of the last decode, as a view of llama.cpp's memory."""

    def __init__(self, context: object, n_rows: int, n_vocab: int) -> None:
        self._context, self._shape, self._address = context, (n_rows, n_vocab), 0
        self.none: Logits = np.empty((0, n_vocab), dtype=np.float32)
        """Empty logits, returned for a prefill."""
        self._logits = self.none

    def read(self) -> Logits:
        """The whole buffer, `[n_rows, n_vocab]`; a new view if llama.cpp moved it.

        Raises:
            DecodeError: llama.cpp has no logits.
        """
        pointer = llama_cpp.llama_get_logits(self._context)
        address = ctypes.c_void_p.from_buffer(pointer).value
        if address is None:
            raise DecodeError("llama.cpp returned no logits after a decode: reload the model")
        if address != self._address:
            self._address = address
            n_rows, n_vocab = self._shape
            values = (ctypes.c_float * (n_rows * n_vocab)).from_address(address)
            self._logits = np.ctypeslib.as_array(values).reshape(n_rows, n_vocab)
        return self._logits


def _memory(capacity: int, dtype: "np.dtype[Any]") -> "tuple[memoryview[int], NDArray[Any]]":
    """An array, and a memoryview of it for fast copies from other arrays."""
    values = np.zeros(capacity, dtype)
    return values.data, values


def _pointer(values: "NDArray[Any]", kind: Any) -> Any:
    return ctypes.cast(values.ctypes.data, ctypes.POINTER(kind))
