"""Contexts of one loaded model side by side, each with cache types of its own."""

from dataclasses import replace

from engine.backends.base import Vocabulary
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LlamaCppVocabulary, LoadedModel
from engine.configuration import Configuration
from engine.memory.kv_cache import kv_type_name
from engine.quality.records import CacheKind
from engine.quality.scoring import BatchShape, OpenedKind


class LlamaCppContexts:
    """One model, of which contexts are opened that differ in cache types and batches.

    The weights lie in memory once. Batches of `n_ubatch` tokens are computed as one: llama.cpp
    writes their keys and values into the cache before attention reads any (`build_attn` in
    `src/llama-graph.cpp`, 0c1e57098), so that every row reads what was quantised, its own too.

    Raises:
        ModelLoadError: llama.cpp refused the file.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = replace(configuration, n_slots=1, kv_unified=False)
        self._log = NativeLog()
        self._weights = LoadedModel(configuration, self._log)
        model = self._weights.take()
        self.vocabulary: Vocabulary = LlamaCppVocabulary(model)
        self.is_concurrent = not configuration.n_gpu_layers
        """On a processor one thread for each context wastes nothing on waiting for other threads,
        which takes most of the time where other programs run; the figures are the same."""
        self._opened: list[LlamaCppBackend] = []

    def open(self, kind: CacheKind, shape: BatchShape) -> OpenedKind:
        configuration = replace(
            self._configuration,
            type_k=kv_type_name(kind.type_k),
            type_v=kv_type_name(kind.type_v),
            n_ctx=shape.n_ctx,
            n_batch=shape.n_batch,
            n_ubatch=shape.n_batch,
        )
        if shape.n_threads is not None:
            configuration = replace(configuration, n_threads=shape.n_threads, n_threads_batch=None)
        backend = LlamaCppBackend(
            configuration, self._log, model=self._weights, n_rows=shape.n_rows
        )
        self._opened.append(backend)
        return OpenedKind(backend, backend.compute_bytes)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        self._weights.release()
