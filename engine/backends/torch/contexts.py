"""Contexts of one loaded model in torch that differ in their kinds of cache."""

from dataclasses import replace

from engine.backends.llama_cpp.log import NativeLog
from engine.backends.torch.backend import TorchBackend
from engine.configuration import Configuration, KVTypes
from engine.quality.scoring import BatchShape, OpenedKind

LEAST_CTX = 64
"""Of the backend that holds the weights and computes nothing."""
CONTROL_ROWS = 2
"""Rows that the control decodes at once: up to two take another product (`torch/device.py`)."""


class TorchContexts:
    """Opens contexts over weights that lie in memory once.

    Rows read what older tokens became in the cache, and the last ones exactly (`WindowedCache`),
    whatever the batches are.
    """

    is_concurrent = False

    def __init__(self, configuration: Configuration) -> None:
        """Load the model.

        Raises:
            ModelLoadError: torch has no code for the model, or it does not fit into memory.
        """
        self._configuration = replace(configuration, draft=None)
        self._log = NativeLog()
        least = BatchShape(LEAST_CTX, LEAST_CTX, LEAST_CTX).of(self._configuration)
        self._weights = TorchBackend(replace(least, kv_cache="f16"), self._log)
        self._opened: list[TorchBackend] = []
        self.vocabulary = self._weights.vocabulary

    def open(self, kind: KVTypes, shape: BatchShape) -> OpenedKind:
        changed = replace(shape.of(self._configuration), kv_cache=str(kind))
        backend = TorchBackend(changed, self._log, like=self._weights, n_rows=shape.n_rows)
        self._opened.append(backend)
        return OpenedKind(backend, backend.read_bytes, CONTROL_ROWS if shape.is_control else None)

    def close(self) -> None:
        for backend in (*self._opened, self._weights):
            backend.close()
