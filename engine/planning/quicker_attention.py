"""What `flash_attention = "auto"` becomes on the processor where the goal is speed.

There llama.cpp's flash attention (0c1e57098, `ggml-cpu/ops.cpp`) reads all keys and values again
for each token of a batch of up to 63; attention with a table of scores reads them once. Behind
2,000 tokens the latter took 0.68 to 0.92 of the time for one token, 0.49 to 0.78 for sixteen and
0.99 to 1.17 for a prompt, with heads of 64 and 128 elements on x86-64 (`docs/attention.md`). Where
most layers slide a window it brought nothing.

It is not the usual choice because its rows round otherwise in a batch than alone: with flash
attention and weights that llama.cpp does not repack, drafts leave the text of a short chat as it is
to the bit.
"""

from dataclasses import replace

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.fit import Estimator
from engine.memory.hardware import Device
from engine.model.architecture import Model

TABLE_SHARE = 1 / 32
"""Most of the main memory that the table of scores may take."""


def with_quicker_attention(
    configuration: Configuration,
    model: Model,
    devices: tuple[Device, ...],
    cost: Estimator,
    margin_bytes: int,
) -> Configuration:
    """Turn `auto` to `off` where that is quicker and its table of scores is small and fits."""
    if not (_is_open(configuration) and _on_processor(configuration, devices) and _is_dense(model)):
        return configuration
    off = replace(configuration, flash_attention="off")
    try:
        without, with_table = cost(configuration), cost(off)
    except PresetError:
        return configuration  # whoever estimates or loads it is told why
    room = TABLE_SHARE * sum(device.total_bytes for device in devices if device.kind == "cpu")
    is_small = with_table.total_bytes - without.total_bytes <= room
    return off if is_small and with_table.fits(margin_bytes) else configuration


def _is_open(configuration: Configuration) -> bool:
    is_auto = configuration.flash_attention == "auto"
    return is_auto and configuration.type_k == configuration.type_v == "f16"


def _on_processor(configuration: Configuration, devices: tuple[Device, ...]) -> bool:
    return configuration.n_gpu_layers == 0 or all(device.kind == "cpu" for device in devices)


def _is_dense(model: Model) -> bool:
    """Whether every layer keeps keys and values of all tokens."""
    architecture = model.architecture
    is_plain = architecture.has_flash_attention and not architecture.is_recurrent
    layers = architecture.layers.values()
    keeps_all = (layer.v_width > 0 and layer.window is None for layer in layers)
    return is_plain and len(layers) == architecture.n_layers and all(keeps_all)
