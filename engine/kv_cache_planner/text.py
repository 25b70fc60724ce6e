"""A planner's configuration as text."""

from engine.configuration import Configuration
from engine.kv_cache_planner.values import CacheEstimate
from engine.memory.search import Offload
from engine.memory.units import format_bytes
from engine.model.architecture import Model


def format_config(
    model: Model, now: Configuration, offload: Offload | None, cost: CacheEstimate
) -> str:
    """Give a configuration and its cost as a few lines of text."""
    k, v = now.type_k, now.type_v
    slots = f" in {now.n_slots} slots" if now.n_slots > 1 else ""
    lines = [
        f"model     {model.file.name}",
        f"context   {now.n_ctx:,} tokens{slots}",
        f"cache     {k if k == v else f'K {k}, V {v}'}: {format_bytes(cost.kv_bytes)}",
        f"offload   {offload or 'by number'}: {_layers(now, model)}",
        f"GPU       {format_bytes(cost.gpu_bytes)}",
        f"memory    {format_bytes(cost.cpu_bytes)}",
        cost.recommendation,
    ]
    return "\n".join(lines)


def _layers(configuration: Configuration, model: Model) -> str:
    n_layers = model.architecture.n_layers
    if configuration.n_gpu_layers < 0:
        n_moe = configuration.n_cpu_moe
        experts = "all" if n_moe < 0 else f"the first {n_moe}"
        return f"all {n_layers} layers on the GPU" + (
            f", experts of {experts} in main memory" if n_moe else ""
        )
    return f"{min(configuration.n_gpu_layers, n_layers)} of {n_layers} layers on the GPU"
