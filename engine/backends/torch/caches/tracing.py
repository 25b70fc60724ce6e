"""A cache that appends its operations to a file, one JSON object per line."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState, held_bytes
from engine.clock import Stopwatch
from engine.errors import DecodeError, ModelLoadError
from engine.files import reason_of

Result = TypeVar("Result")


class CacheTrace:
    """The file of a trace.

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
            raise ModelLoadError(f"{path} cannot be written: {reason_of(error)}") from error

    def add(self, **operation: object) -> None:
        """Append an operation; the trace ends after the first failure.

        Raises:
            DecodeError: the operation cannot be written.
        """
        if self._has_failed:
            return
        try:
            self._file.write(f"{json.dumps(operation)}\n".encode())
        except OSError as error:
            self._has_failed = True
            raise DecodeError(
                f"the trace {self._path} is incomplete, because writing failed: {reason_of(error)}"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TracingCache(KVCache):
    """Another cache, with its operations added to a trace, including failed ones."""

    def __init__(self, cache: KVCache, layer: int, trace: CacheTrace, *, sequence: int = 0) -> None:
        self._cache, self._trace = cache, trace
        self._where = {"sequence": sequence, "layer": layer}

    @property
    def length(self) -> int:
        return self._cache.length

    def tensors(self) -> Iterable[Tensor]:
        return self._cache.tensors()

    def update(self, keys: Tensor, values: Tensor) -> KVState:
        return self._traced("update", keys.shape, lambda: self._cache.update(keys, values))

    def state(self) -> KVState:
        return self._traced("state", (), self._cache.state)

    def can_crop(self, length: int) -> bool:
        return self._cache.can_crop(length)

    def crop(self, length: int) -> None:
        self._traced("crop", (length,), lambda: self._cache.crop(length))

    def held(self) -> Mapping[str, Tensor]:
        return self._traced("save", (), self._cache.held)

    def hold(self, found: Mapping[str, Tensor], length: int) -> None:
        self._traced("load", (), lambda: self._cache.hold(found, length))

    def _traced(self, name: str, shape: Iterable[int], call: Callable[[], Result]) -> Result:
        watch = Stopwatch()
        try:
            result = call()
            if name == "state" and isinstance(result, KVState):
                shape = result.keys.shape
            return result
        finally:
            elapsed_s = watch.total()
            self._trace.add(
                name=name, **self._where, shape=list(shape), length=self.length,
                nbytes=held_bytes([self._cache]), elapsed_s=elapsed_s,
            )  # fmt: skip
