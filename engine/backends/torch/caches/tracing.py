"""A cache that writes down what is asked of it."""

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState, held_bytes
from engine.clock import Stopwatch
from engine.errors import DecodeError, ModelLoadError

OperationName = Literal["update", "state", "crop", "save", "load"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CacheOperation:
    """One call and what it took; told when it failed too."""

    name: OperationName
    sequence: int
    layer: int
    shape: tuple[int, ...]
    """Of the new keys of an update, of the keys that a state gave; `(length,)` of a crop; else
    empty."""
    length: int
    """Tokens seen afterwards."""
    nbytes: int
    """Allocated afterwards."""
    elapsed_s: float


class CacheTrace:
    """A file that operations are appended to, one JSON object a line, in the order of the calls.

    Raises:
        ModelLoadError: the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = False
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
        except OSError as error:
            raise ModelLoadError(f"{path} cannot be written: {error.strerror or error}") from error

    def add(self, operation: CacheOperation) -> None:
        """Append an operation; behind the first that cannot be written the trace has ended.

        Raises:
            DecodeError: it cannot be written.
        """
        if self._has_failed:
            return
        try:
            self._file.write(f"{json.dumps(asdict(operation))}\n".encode())
        except OSError as error:
            self._has_failed = True
            raise DecodeError(
                f"the trace {self._path} cannot be written and ends here: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """End the file; closing twice is harmless."""
        self._file.close()


class TracingCache:
    """Another cache, each of whose operations is added to a trace."""

    def __init__(self, cache: KVCache, layer: int, trace: CacheTrace, *, sequence: int = 0) -> None:
        self._cache, self._layer, self._trace = cache, layer, trace
        self._sequence = sequence

    @property
    def length(self) -> int:
        return self._cache.length

    def tensors(self) -> Iterable[Tensor]:
        return self._cache.tensors()

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        return self._traced("update", tuple(keys.shape), lambda: self._cache.update(keys, values))

    def state(self) -> KVState:
        watch = Stopwatch()
        state = self._cache.state()
        self._add("state", tuple(state.keys.shape), watch)
        return state

    def can_crop(self, length: int) -> bool:
        return self._cache.can_crop(length)

    def crop(self, length: int) -> None:
        self._traced("crop", (length,), lambda: self._cache.crop(length))

    def save(self) -> bytes:
        return self._traced("save", (), self._cache.save)

    def load(self, saved: bytes | memoryview) -> None:
        self._traced("load", (), lambda: self._cache.load(saved))

    def _traced(
        self, name: OperationName, shape: tuple[int, ...], call: Callable[[], Result]
    ) -> Result:
        watch = Stopwatch()
        try:
            return call()
        finally:
            self._add(name, shape, watch)

    def _add(self, name: OperationName, shape: tuple[int, ...], watch: Stopwatch) -> None:
        elapsed_s = watch.total()
        nbytes = held_bytes([self._cache])
        self._trace.add(
            CacheOperation(name, self._sequence, self._layer, shape, self.length, nbytes, elapsed_s)
        )
