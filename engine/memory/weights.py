"""Where the tensors of a model go: input, layers, output; and what they weigh there."""

import re
from dataclasses import dataclass
from functools import lru_cache

from engine.model.gguf import GgufFile, TensorInfo

LAYER = re.compile(r"^blk\.(\d+)\.")
PADDING = 32


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the tensors by the part of the model that they belong to."""

    input_bytes: int
    """Token embeddings: always in the memory of the CPU."""
    layer_bytes: tuple[int, ...]
    output_bytes: int
    """The output layer without tied embeddings."""
    tied_bytes: int
    """Embeddings that are the output layer too: a GPU gets a copy of them; 0 where none are."""

    @property
    def total_bytes(self) -> int:
        """All tensors of the file."""
        return self.input_bytes + sum(self.layer_bytes) + self.output_bytes


@lru_cache(maxsize=16)
def weights_of(file: GgufFile) -> Weights:
    """Sum the tensor table of a model, once for each header that was read.

    The layers of a next-token head are there, for `n_gpu_layers` counts them, and weigh nothing:
    llama.cpp does not load them into a main context.
    """
    n_blocks = file.integer(f"{file.architecture}.block_count") or 0
    n_trunk = n_blocks - (file.integer(f"{file.architecture}.nextn_predict_layers") or 0)
    layers = [0] * n_blocks
    inputs = outputs = 0
    for tensor in file.tensors:
        match = LAYER.match(tensor.name)
        if match and int(match[1]) < n_blocks:
            index = int(match[1])
            layers[index] += _padded(tensor) if index < n_trunk else 0
        elif tensor.name.startswith("output"):
            outputs += _padded(tensor)
        else:
            inputs += _padded(tensor)
    return Weights(inputs, tuple(layers), outputs, _tied_bytes(file))


def _tied_bytes(file: GgufFile) -> int:
    sizes = {tensor.name: _padded(tensor) for tensor in file.tensors}
    return 0 if "output.weight" in sizes else sizes.get("token_embd.weight", 0)


def _padded(tensor: TensorInfo) -> int:
    return -(-tensor.nbytes // PADDING) * PADDING
