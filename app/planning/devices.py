"""The GPUs to plan for: those found, sizes that were typed, or cards."""

from dataclasses import replace

from app.planning.knob import Facts
from app.planning.plan import Setup
from app.planning.values import GPU_SIZES, parse_sizes, step_among
from engine.memory.units import GIB, format_bytes


def shown_devices(setup: Setup) -> str:
    """Write the GPUs as they can be typed: `found`, `8 GiB`, `2x24 GiB`, `RTX 4090`."""
    names = setup.gpu_names or tuple(map(_size, setup.vram_bytes))
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    parts = [name if count == 1 else f"{count}x{name}" for name, count in counts.items()]
    return " + ".join(parts) or "found"


def turned_devices(setup: Setup, facts: Facts, step: int) -> Setup:
    """Take the next common size for one GPU; several go back to those found."""
    del facts
    now = setup.vram_bytes
    stop = 0 if len(now) > 1 else step_among((0, *GPU_SIZES), now[0] if now else 0, step)
    return with_gpus(setup, (stop,) if stop else ())


def parse_devices(setup: Setup, text: str) -> Setup:
    """Read sizes.

    Raises:
        KnobError: one of them is none.
    """
    return with_gpus(setup, parse_sizes(text))


def with_gpus(setup: Setup, vram_bytes: tuple[int, ...], names: tuple[str, ...] = ()) -> Setup:
    """Plan for other GPUs; a split or a main GPU that no longer suits their number goes."""
    now = setup.configuration
    n_gpus = len(vram_bytes)
    if n_gpus and len(now.tensor_split) != n_gpus:
        now = replace(now, tensor_split=())
    if n_gpus and now.main_gpu >= n_gpus:
        now = replace(now, main_gpu=0)
    return replace(setup, configuration=now, vram_bytes=vram_bytes, gpu_names=names)


def _size(nbytes: int) -> str:
    return f"{nbytes // GIB} GiB" if nbytes % GIB == 0 else format_bytes(nbytes)
