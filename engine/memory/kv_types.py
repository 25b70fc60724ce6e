"""The nine types that keys and values can be kept in."""

from engine.configuration import KVTypeName
from engine.errors import PresetError
from engine.model.ggml_types import GGML_TYPES, GgmlType

KV_TYPES: dict[KVTypeName, GgmlType] = {
    "f32": GGML_TYPES[0],
    "f16": GGML_TYPES[1],
    "bf16": GGML_TYPES[30],
    "q8_0": GGML_TYPES[8],
    "q5_1": GGML_TYPES[7],
    "q5_0": GGML_TYPES[6],
    "q4_1": GGML_TYPES[3],
    "q4_0": GGML_TYPES[2],
    "iq4_nl": GGML_TYPES[20],
}
"""Best first: `--cache-type-k` of llama.cpp (common/arg.cpp)."""


def kv_type(name: KVTypeName) -> GgmlType:
    """Give a cache type by its name.

    Raises:
        PresetError: there is no such type.
    """
    found = KV_TYPES.get(name)
    if found is None:
        raise PresetError(f"{name!r} is no cache type: choose one of {', '.join(KV_TYPES)}")
    return found


def is_quantized(name: KVTypeName) -> bool:
    """Whether the type packs elements in blocks."""
    return kv_type(name).block_size > 1
