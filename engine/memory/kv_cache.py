"""Bytes of the key-value cache, exactly as llama.cpp allocates them.

Formulas of llama.cpp 0c1e57098: `src/llama-kv-cache.cpp`, `src/llama-kv-cache-iswa.cpp`, padding in
`src/llama-context.cpp`.
"""

from dataclasses import dataclass

from engine.configuration import KVTypeName
from engine.errors import PresetError
from engine.memory.kv_types import is_quantized, kv_type
from engine.model.architecture import Architecture, Layer

PAD = 256


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the cache of a context depends on besides the model."""

    n_ctx: int
    """Tokens asked for, over all slots."""
    n_ubatch: int
    type_k: KVTypeName
    type_v: KVTypeName
    flash_attention: bool = True
    n_slots: int = 1
    kv_unified: bool = False
    swa_full: bool = False

    @property
    def n_streams(self) -> int:
        """Separate caches: one for each slot unless they share cells."""
        return 1 if self.kv_unified else self.n_slots

    @property
    def n_cells(self) -> int:
        """Cells of one stream: the context padded to 256, divided among the streams."""
        padded = pad(self.n_ctx)
        return padded if self.n_streams == 1 else pad(padded // self.n_streams)

    @property
    def n_graph_tokens(self) -> int:
        """Tokens of the largest graph: a micro-batch, or the whole context where it is smaller."""
        return min(self.n_ubatch, pad(self.n_ctx))

    def n_window_cells(self, window: int) -> int:
        """Cells of a sliding-window layer in one stream."""
        if self.swa_full:
            return self.n_cells
        n_windows = self.n_slots if self.kv_unified else 1
        return pad(min(self.n_cells, window * n_windows + self.n_graph_tokens))

    def cells(self, layer: Layer) -> int:
        """Cells of a layer in one stream."""
        return self.n_cells if layer.window is None else self.n_window_cells(layer.window)


def pad(n: int) -> int:
    """Round up to a multiple of 256."""
    return -(-n // PAD) * PAD


def layer_kv_bytes(architecture: Architecture, shape: CacheShape) -> dict[int, int]:
    """Give the bytes of each layer that owns a cache, by its index.

    Without flash attention values are stored transposed, padded to the widest layer.

    Raises:
        PresetError: a combination that llama.cpp refuses; the message says which.
    """
    check_cache_types(architecture, shape)
    k_type, v_type = kv_type(shape.type_k), kv_type(shape.type_v)
    widest = max((layer.v_width for layer in architecture.layers.values()), default=0)
    sizes = {}
    for index, layer in architecture.layers.items():
        v_width = layer.v_width if shape.flash_attention else widest
        row = k_type.row_bytes(layer.k_width) + v_type.row_bytes(v_width)
        sizes[index] = row * shape.cells(layer) * shape.n_streams
    return sizes


def check_cache_types(architecture: Architecture, shape: CacheShape) -> None:
    """Refuse cache types that llama.cpp would refuse.

    Raises:
        PresetError: quantised values without flash attention, or heads that are no whole blocks.
    """
    if is_quantized(shape.type_v) and not shape.flash_attention:
        raise PresetError(
            f"V type {shape.type_v} needs flash attention, which is off: turn it on, or use f16"
        )
    if not shape.flash_attention:
        return  # llama.cpp looks at the blocks of heads with flash attention only
    for name, letter in ((shape.type_k, "K"), (shape.type_v, "V")):
        block = kv_type(name).block_size
        dims = {
            layer.k_head_dim if letter == "K" else layer.v_head_dim
            for layer in architecture.layers.values()
        }
        odd = sorted(dim for dim in dims if dim % block)
        if odd:
            raise PresetError(
                f"{letter} type {name} packs blocks of {block}, but the model's heads have "
                f"{odd[0]} elements: use f16, bf16 or f32 for {letter}"
            )
