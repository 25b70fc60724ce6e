"""A configuration as options of llama-server, before any format quotes them.

Every value that was planned with is said, so that nothing is left to `--fit` or to a default that
changed: `--parallel` among them. Option names are those of llama.cpp b11434 (`common/arg.cpp`).
"""

from collections.abc import Iterator

from engine.configuration import Configuration, TensorOverride
from engine.presets.export.flag_sets import FlagSet
from engine.presets.export.request import ExportError
from engine.presets.export.speculation import speculation_options
from engine.presets.export.words import Option, layers, number


def options(configuration: Configuration, flags: FlagSet) -> tuple[Option, ...]:
    """Give the options of a llama-server that runs a configuration, in a fixed order.

    Raises:
        ExportError: a pattern of tensors that llama-server would cut apart.
    """
    return (
        Option("model", str(configuration.model_path)),
        *_context(configuration, flags),
        *_placement(configuration, flags),
        *_companions(configuration, flags),
        *_sampling(configuration),
        *speculation_options(configuration, flags),
    )


def _context(configuration: Configuration, flags: FlagSet) -> Iterator[Option]:
    yield Option("ctx-size", str(configuration.n_ctx))
    yield Option("batch-size", str(configuration.n_batch))
    yield Option("ubatch-size", str(configuration.n_ubatch))
    yield Option("parallel", str(configuration.n_slots))
    if configuration.kv_unified and flags.has_unified:
        yield Option("kv-unified")
    yield Option("cache-type-k", configuration.type_k)
    yield Option("cache-type-v", configuration.type_v)
    yield Option("flash-attn", configuration.flash_attention)
    if configuration.swa_full and flags.has_swa_full:
        yield Option("swa-full")
    if configuration.n_threads is not None:
        yield Option("threads", str(configuration.n_threads))


def _placement(configuration: Configuration, flags: FlagSet) -> Iterator[Option]:
    yield Option("n-gpu-layers", layers(configuration.n_gpu_layers, flags))
    if flags.has_fit:
        yield Option("fit", "off")
    if configuration.split_mode != "layer":
        yield Option("split-mode", configuration.split_mode)
    if configuration.main_gpu:
        yield Option("main-gpu", str(configuration.main_gpu))
    if configuration.tensor_split:
        yield Option("tensor-split", ",".join(map(number, configuration.tensor_split)))
    if configuration.tensor_overrides:
        yield Option("override-tensor", ",".join(map(_override, configuration.tensor_overrides)))
    if configuration.n_cpu_moe < 0:
        yield Option("cpu-moe")
    elif configuration.n_cpu_moe:
        yield Option("n-cpu-moe", str(configuration.n_cpu_moe))
    if not configuration.offload_kqv:
        yield Option("no-kv-offload")
    if not configuration.use_extra_buffers and flags.has_repack:
        yield Option("no-repack")


def _companions(configuration: Configuration, flags: FlagSet) -> Iterator[Option]:
    if configuration.mmproj_path is not None:
        yield Option("mmproj", str(configuration.mmproj_path))
        if not configuration.mmproj_offload:
            yield Option("no-mmproj-offload")
    adapters = [str(path) for path in configuration.lora_paths]
    if adapters and flags.joins_adapters:
        yield Option("lora", ",".join(map(_csv_field, adapters)))
    else:
        yield from (Option("lora", adapter) for adapter in adapters)


def _sampling(configuration: Configuration) -> Iterator[Option]:
    sampling = configuration.sampling
    yield Option("temp", number(sampling.temperature))
    yield Option("top-k", str(sampling.top_k))
    yield Option("top-p", number(sampling.top_p))
    yield Option("min-p", number(sampling.min_p))
    yield Option("repeat-penalty", number(sampling.repetition_penalty))
    yield Option("repeat-last-n", str(sampling.repetition_window))


def _override(override: TensorOverride) -> str:
    """Give `pattern=device` with the device as CUDA builds call it.

    llama-server splits the whole value at commas and each part at its first `=`.
    """
    pattern = override.pattern
    bad = [character for character in ",=" if character in pattern]
    if bad:
        raise ExportError(
            f"the tensor pattern {pattern!r} has {bad[0]!r}, at which llama-server cuts its "
            "overrides apart: write the pattern without it (`.` stands for any character)"
        )
    return f"{pattern}={device_name(override.device)}"


def device_name(device: str) -> str:
    """Give the name that a CUDA build has for a device: `GPU 1` is CUDA1."""
    word, _, index = device.partition(" ")
    return f"CUDA{index}" if word == "GPU" and index else device


def _csv_field(path: str) -> str:
    """Quote a path for `--lora`, whose values are split at commas outside double quotes."""
    if "," not in path and not path.startswith('"'):
        return path
    return '"' + path.replace('"', '""') + '"'
