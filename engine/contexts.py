"""Open several contexts of one loaded model with different cache types."""

from dataclasses import replace

from engine.backends import TORCH_MISSING
from engine.backends.base import Backend
from engine.backends.llama_cpp.backend import LlamaCppBackend
from engine.backends.llama_cpp.log import NativeLog
from engine.backends.llama_cpp.model import LlamaCppVocabulary, LoadedModel
from engine.configuration import Configuration, KVTypes
from engine.errors import ModelLoadError
from engine.memory.kv_cache import with_types
from engine.model.architecture import read_model
from engine.quality.records import Role
from engine.quality.scoring import BatchShape, OpenedContext

CONTROL_SHARE = 4
"""Batches per chunk in llama.cpp's control, which also uses the other attention."""
CONTROL_ROWS = 2
"""Rows per step of the control on torch: up to two use another matrix product."""
MIN_CTX = 64
"""Context of the torch backend that only holds the weights."""


class LlamaCppContexts:
    """Opens llama.cpp contexts that share one copy of the weights.

    llama.cpp writes keys and values of a batch into the cache before attention reads any
    (`build_attn` in `src/llama-graph.cpp`, 0c1e57098), so every row reads quantised values,
    including its own. Flash attention converts f32 to f16, so f32 caches are read without it
    (`build_attn_mha`, the same file). The control toggles flash attention: smaller batches alone
    use the same kernels below 64 tokens (`GGML_FA_TILE_Q`, `ggml/src/ggml-cpu/common.h`).

    Raises:
        ModelLoadError: llama.cpp cannot load the file.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._log = NativeLog()
        self._weights = LoadedModel(configuration, self._log)
        self._opened: list[LlamaCppBackend] = []
        self.vocabulary = LlamaCppVocabulary(self._weights.take())

    def open(self, kind: KVTypes, shape: BatchShape, role: Role = "candidate") -> OpenedContext:
        changed = with_types(shape.of(self._configuration), kind)
        is_control, is_wide = role == "control", kind == KVTypes("f32", "f32")
        is_flash = changed.flash_attention != "off" and not is_wide
        if is_control:
            model = read_model(changed.model_path)
            is_flash = not is_flash and model.architecture.has_flash_attention
        if is_control or is_wide:
            changed = replace(changed, flash_attention="on" if is_flash else "off")
        backend = LlamaCppBackend(changed, self._log, model=self._weights, n_rows=shape.n_rows)
        self._opened.append(backend)
        n_step = max(1, shape.n_rows // CONTROL_SHARE) if is_control else None
        return OpenedContext(kind, role, backend, backend.open(), backend.compute_bytes, n_step)

    def close(self) -> None:
        for backend in self._opened:
            backend.close()
        self._weights.release()


class TorchContexts:
    """Opens torch contexts that share one copy of the weights.

    Rows read older tokens from the cache and the last ones unquantised (`WindowedCache`),
    whatever the batch sizes.

    Raises:
        ModelLoadError: torch is not installed or does not support the model, or the model does
            not fit into memory.
    """

    def __init__(self, configuration: Configuration) -> None:
        try:
            from engine.backends.torch.backend import TorchBackend  # takes a second or two
        except ImportError as error:
            raise ModelLoadError(TORCH_MISSING.format(reason=error)) from error
        self._backend_type = TorchBackend
        self._configuration = replace(configuration, draft=None)
        self._log = NativeLog()
        smallest = BatchShape(MIN_CTX, MIN_CTX, MIN_CTX).of(self._configuration)
        self._weights = TorchBackend(replace(smallest, kv_cache="f16"), self._log)
        self._opened: list[Backend] = []
        self.vocabulary = self._weights.vocabulary

    def open(self, kind: KVTypes, shape: BatchShape, role: Role = "candidate") -> OpenedContext:
        changed = replace(shape.of(self._configuration), kv_cache=str(kind))
        backend = self._backend_type(changed, self._log, like=self._weights, n_rows=shape.n_rows)
        self._opened.append(backend)
        n_step = CONTROL_ROWS if role == "control" else None
        return OpenedContext(kind, role, backend, backend.open(), backend.read_bytes, n_step)

    def close(self) -> None:
        for backend in (*self._opened, self._weights):
            backend.close()
