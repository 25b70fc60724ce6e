"""One loaded model in torch, and contexts of it side by side, each with a cache kind of its own."""

from dataclasses import replace

from engine.backends.base import Vocabulary
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.torch.backend import TorchBackend
from engine.configuration import Configuration
from engine.quality.records import CacheKind
from engine.quality.scoring import BatchShape, OpenedKind

LEAST_CTX = 64
"""Of the context that holds the weights and computes nothing."""


class TorchContexts:
    """One model, of which contexts are opened that differ in cache kinds and batches.

    The weights lie in memory once. Rows read what older tokens became in the cache, and the last
    ones exactly (`WindowedCache`), whatever the batches are.

    Raises:
        ModelLoadError: torch has no code for the model, or it does not fit into memory.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = replace(configuration, n_slots=1, kv_unified=False)
        self._log = NativeLog()
        first = replace(
            self._configuration, n_ctx=LEAST_CTX, kv_cache="f16", n_batch=LEAST_CTX, draft=None
        )
        self._weights = TorchBackend(first, self._log)
        self.vocabulary: Vocabulary = self._weights.vocabulary
        self.is_concurrent = False
        """torch has one set of threads for all."""
        self._opened: list[TorchBackend] = []

    def open(self, kind: CacheKind, shape: BatchShape) -> OpenedKind:
        configuration = replace(
            self._configuration,
            kv_cache=str(kind),
            n_ctx=shape.n_ctx,
            n_batch=shape.n_batch,
            n_ubatch=shape.n_batch,
        )
        backend = TorchBackend(configuration, self._log, like=self._weights, n_rows=shape.n_rows)
        self._opened.append(backend)
        return OpenedKind(backend, backend.read_bytes)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        self._weights.close()
