"""Bytes of the key-value cache, exactly as llama.cpp allocates them.

Formulas of llama.cpp 0c1e57098: `src/llama-kv-cache.cpp`, `src/llama-kv-cache-iswa.cpp`, padding in
`src/llama-context.cpp`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.configuration import KV_TYPE_NAMES, Configuration, KVTypeName, KVTypes
from engine.errors import PresetError
from engine.memory.units import FLOAT_BYTES
from engine.model.architecture import Architecture
from engine.model.ggml import TYPES_BY_NAME, GgmlType
from engine.model.layers import Layer

PAD = 256
KV_TYPES: dict[KVTypeName, GgmlType] = {name: TYPES_BY_NAME[name] for name in KV_TYPE_NAMES}
"""Best first: `--cache-type-k` of llama.cpp (common/arg.cpp)."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """Settings that determine the size of a KV cache besides the model."""

    n_ctx: int
    """Tokens asked for, over all slots."""
    n_ubatch: int
    type_k: KVTypeName
    type_v: KVTypeName
    flash_attention: bool = True
    n_slots: int = 1
    kv_unified: bool = False
    swa_full: bool = False
    n_rollback: int = 0
    """Rows that each slot of a recurrent state keeps to take drafted tokens back."""
    is_causal: bool = True
    """Whether a token attends to those before it alone."""

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
        """Tokens of the largest graph: a ubatch, in equal parts for all slots."""
        return -(-self.n_batch_tokens // self.n_slots) * self.n_slots

    @property
    def n_batch_tokens(self) -> int:
        """Tokens of a ubatch, or of the whole padded context if that is smaller."""
        n_ctx = pad(self.n_ctx) if self.is_causal else self.n_cells * self.n_streams
        return min(self.n_ubatch, n_ctx)

    def cells(self, layer: Layer) -> int:
        """Cells of a layer in one stream."""
        if layer.window is None or self.swa_full:
            return self.n_cells
        n_windows = self.n_slots if self.kv_unified and not layer.is_unshared else 1
        return pad(min(self.n_cells, layer.window * n_windows + self.n_batch_tokens))

    def compressed_cells(self, layer: Layer) -> int:
        """Cells of a layer's compressed cache in one stream; 0 if it has none."""
        ratio = layer.compress_ratio
        return pad(-(-self.n_cells // ratio)) if ratio else 0

    def attended_cells(self, layer: Layer) -> int:
        """Cells that a token of a layer attends to, those of a compressed cache among them."""
        return self.cells(layer) + self.compressed_cells(layer)

    def streams(self, layer: Layer) -> int:
        """Separate caches of a layer."""
        return self.n_slots if layer.is_unshared else self.n_streams


def kv_type_name(name: str) -> KVTypeName:
    """The name of a cache type; raises `PresetError` if there is no such type."""
    for known in KV_TYPES:
        if known == name:
            return known
    raise PresetError(f"{name!r} is not a cache type: choose one of {', '.join(KV_TYPES)}")


def kv_type(name: str) -> GgmlType:
    """The cache type of a name; raises `PresetError` if there is no such type."""
    return KV_TYPES[kv_type_name(name)]


def is_quantized(name: str) -> bool:
    """Whether the type packs elements in blocks."""
    return kv_type(name).block_size > 1


def with_types(configuration: Configuration, types: KVTypes) -> Configuration:
    """The configuration with other cache types; raises `PresetError` if there is no such type."""
    return replace(configuration, type_k=kv_type_name(types.k), type_v=kv_type_name(types.v))


def bits_of(types: KVTypes) -> tuple[float, float]:
    """Bits of one element of the keys and of the values, the block's scales included."""
    return kv_type(types.k).bits, kv_type(types.v).bits


def is_whole(types: KVTypes) -> bool:
    """Whether neither keys nor values are packed."""
    return min(bits_of(types)) >= kv_type("f16").bits


def pad(n: int) -> int:
    """Round up to a multiple of 256."""
    return -(-n // PAD) * PAD


def layer_kv_bytes(architecture: Architecture, shape: CacheShape) -> dict[int, int]:
    """The bytes of each layer that owns a cache, by its index; raises as `check_cache_types`."""
    check_cache_types(architecture, shape)
    return layers_kv_bytes(architecture, architecture.layers, shape)


def layers_kv_bytes(
    architecture: Architecture, layers: Mapping[int, Layer], shape: CacheShape
) -> dict[int, int]:
    """The bytes of some layers of a model, unchecked.

    Without flash attention values are stored transposed, padded to the widest layer. Indexers of
    sparse attention keep a second cache of every token.
    """
    k_type, v_type = kv_type(shape.type_k), kv_type(shape.type_v)
    widest = architecture.v_width_max
    sizes = {}
    for layer in dict.fromkeys(layers.values()):
        v_width = layer.v_width if shape.flash_attention or not layer.v_head_dim else widest
        row = k_type.row_bytes(layer.k_width) + v_type.row_bytes(v_width)
        indexer = k_type.row_bytes(layer.indexer_k_width) + v_type.row_bytes(layer.indexer_v_width)
        compressed = shape.compressed_cells(layer)
        cells = row * (shape.cells(layer) + compressed)
        cells += indexer * (compressed or shape.n_cells)
        sizes[layer] = cells * shape.streams(layer)
    return {index: sizes[layer] for index, layer in layers.items()}


def layer_state_bytes(architecture: Architecture, shape: CacheShape) -> dict[int, int]:
    """The bytes of each recurrent layer's state, by its index: float32, a row for each slot.

    With `n_rollback` each slot keeps that many rows more, to take drafted tokens back
    (`src/llama-memory-recurrent.cpp`).
    """
    n_rows = shape.n_slots * (1 + shape.n_rollback)
    return {
        index: (row.n_convolution + row.n_state) * n_rows * FLOAT_BYTES
        for index, row in architecture.states.items()
    }


def layer_cache_bytes(architecture: Architecture, shape: CacheShape) -> dict[int, int]:
    """The bytes of cache and state of each layer, by its index; raises as `check_cache_types`."""
    sizes = layer_kv_bytes(architecture, shape)
    for index, nbytes in layer_state_bytes(architecture, shape).items():
        sizes[index] = sizes.get(index, 0) + nbytes
    return sizes


def check_cache_types(architecture: Architecture, shape: CacheShape) -> None:
    """Raise `PresetError` for cache types that llama.cpp would refuse.

    These are quantised values without flash attention, types that differ where keys alone are
    cached, and heads that are no whole blocks.
    """
    if architecture.needs_one_type and shape.type_k != shape.type_v:
        raise PresetError(
            f"{architecture.name} stores keys and values in one tensor (MLA): type_k is "
            f"{shape.type_k} and type_v {shape.type_v}, but both must be the same"
        )
    if is_quantized(shape.type_v) and not shape.flash_attention:
        why = "which is off: turn it on, or use f16"
        if not architecture.has_flash_attention:
            why = f"which llama.cpp lacks for {architecture.name}: use f16"
        raise PresetError(f"V type {shape.type_v} needs flash attention, {why}")
    if not shape.flash_attention:
        return  # llama.cpp looks at the blocks of heads with it only
    for letter, name, head_dims in (
        ("K", shape.type_k, architecture.k_head_dims),
        ("V", shape.type_v, architecture.v_head_dims),
    ):
        block = kv_type(name).block_size
        if odd := sorted(dim for dim in head_dims if dim % block):
            raise PresetError(
                f"{letter} type {name} has blocks of {block} elements, but the model's heads have "
                f"{odd[0]} elements: use f16, bf16 or f32 for {letter}"
            )
