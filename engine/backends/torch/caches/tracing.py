"""A cache that writes down what is asked of it."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

from torch import Tensor

from engine.backends.torch.caches.base import KVCache, KVState
from engine.clock import Stopwatch
from engine.files import replace_file

OperationName = Literal["update", "state", "crop", "save", "load"]
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CacheOperation:
    """One call and what it took; told when it failed too."""

    name: OperationName
    layer: int
    shape: tuple[int, ...]
    """Of the new keys of an update, of the keys that a state gave; `(length,)` of a crop; else
    empty."""
    length: int
    """Tokens seen afterwards."""
    nbytes: int
    """Held afterwards."""
    elapsed_s: float


class CacheTrace:
    """The operations of all layers, in order."""

    def __init__(self) -> None:
        self.operations: list[CacheOperation] = []

    def write(self, path: Path) -> None:
        """One JSON object a line, in the order of the calls.

        Raises:
            OSError: the file cannot be written; an older one stays as it was.
        """
        lines = (f"{json.dumps(asdict(each))}\n".encode() for each in self.operations)
        replace_file(path, lines, is_durable=False)


class TracingCache:
    """Another cache, each of whose operations is added to a trace."""

    def __init__(self, cache: KVCache, layer: int, trace: CacheTrace) -> None:
        self._cache, self._layer, self._trace = cache, layer, trace

    @property
    def length(self) -> int:
        return self._cache.length

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes

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
        self._trace.operations.append(
            CacheOperation(name, self._layer, shape, self.length, self.nbytes, watch.total())
        )
