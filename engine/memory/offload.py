"""Tensors that lie in main memory and visit a GPU for large batches.

From 32 tokens on llama.cpp multiplies weights of main memory on the first GPU (`op_offload`): its
compute buffer then holds a copy of the largest such tensor.
"""

from functools import lru_cache

from engine.configuration import Configuration, TensorOverride
from engine.memory.placement import Placement
from engine.memory.weights import CPU, layer_of, overridden, override_rules
from engine.model.architecture import Model, layer_counts
from engine.model.gguf import GgufFile
from engine.model.header_keys import HeaderKeys

LEAST_TOKENS = 32
UNEVEN = frozenset({"afmoe", "exaone-moe", "llama4", "mellum"})
"""Architectures whose layers differ in their operations, as those of hybrids do."""
EVEN = frozenset({"glm5-next"})
"""Hybrids for which this was not seen."""
UNEVEN_FACTOR = 1.85
"""Such layers leave holes that the next tensor does not fit: nearly two are there at once."""


def offloaded_tensor_bytes(model: Model, configuration: Configuration, where: Placement) -> int:
    """Give the room of the largest tensor that visits the first GPU; 0 where none does."""
    overrides, n_cpu_moe = configuration.tensor_overrides, configuration.n_cpu_moe
    by_layer, moved = _largest_tensors(model.file, overrides, n_cpu_moe)
    sizes = [by_layer[i] for i, device in enumerate(where.layer_devices) if device.kind == "cpu"]
    architecture = model.architecture
    is_uneven = architecture.name in UNEVEN or (
        architecture.states and architecture.name not in EVEN
    )
    if n_cpu_moe and is_uneven:
        moved = round(moved * UNEVEN_FACTOR)
    return max([moved, *sizes])


@lru_cache(maxsize=64)
def _largest_tensors(
    file: GgufFile, overrides: tuple[TensorOverride, ...], n_cpu_moe: int
) -> tuple[tuple[int, ...], int]:
    """Give the largest matrix of each layer, and the largest that overrides keep on the CPU."""
    n_blocks, _ = layer_counts(HeaderKeys(file))
    rules = override_rules(overrides, n_cpu_moe)
    by_layer, moved = [0] * n_blocks, 0
    for tensor in file.tensors:
        index = layer_of(tensor.name, n_blocks)
        device = overridden(tensor.name, rules)
        if device is not None:
            moved = max(moved, tensor.nbytes) if device.upper() == CPU else moved
        elif index is not None:
            by_layer[index] = max(by_layer[index], tensor.nbytes)
    return tuple(by_layer), moved
