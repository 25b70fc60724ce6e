"""Which device each layer goes to.

llama.cpp 0c1e57098, `src/llama-model.cpp`: the last `n_gpu_layers` layers go to the GPUs, the
output layer counting as one; the input embeddings never do; embeddings that are tied to the output
are copied. Several GPUs share the layers in proportion to their free memory.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate

from engine.memory.hardware import Device
from engine.memory.weights import Weights


@dataclass(frozen=True, slots=True)
class Placement:
    """Devices of the layers and of the output, and the weights that each device holds."""

    layer_devices: tuple[Device, ...]
    output_device: Device
    weight_bytes: dict[Device, int]


def place(weights: Weights, n_gpu_layers: int, gpus: tuple[Device, ...], cpu: Device) -> Placement:
    """Place a model's tensors; a negative number of layers is all of them."""
    n_layers = len(weights.layer_bytes)
    n_offloaded = n_layers + 1 if n_gpu_layers < 0 else min(n_gpu_layers, n_layers + 1)
    first = n_layers + 1 - n_offloaded if gpus else n_layers + 1
    devices = [
        cpu if index < first else _share(index - first, n_offloaded, gpus)
        for index in range(n_layers + 1)
    ]
    held: dict[Device, int] = defaultdict(int)
    held[cpu] += weights.input_bytes
    for device, nbytes in zip(devices, weights.layer_bytes, strict=False):
        held[device] += nbytes
    output = devices[n_layers]
    held[output] += weights.output_bytes
    if output.kind == "gpu":
        held[output] += weights.tied_bytes
    return Placement(tuple(devices[:n_layers]), output, dict(held))


def _share(index: int, n_offloaded: int, gpus: tuple[Device, ...]) -> Device:
    total = sum(gpu.free_bytes for gpu in gpus)
    if len(gpus) == 1 or total == 0:
        return gpus[0]
    bounds = [part / total for part in accumulate(gpu.free_bytes for gpu in gpus)]
    return gpus[min(bisect_right(bounds, index / n_offloaded), len(gpus) - 1)]
