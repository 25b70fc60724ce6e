"""Plans of models that are no files here: real shapes from the catalogue."""

from dataclasses import replace

from engine.configuration import Configuration
from engine.memory.units import GIB
from engine.model.catalog import find_entry
from engine.planning.machine import PlannedMachine
from engine.planning.options import OPTIONS, PlanOption
from engine.planning.planner import Plan, Planner, Setup

DENSE, EXPERTS, HYBRID, WINDOWS = (
    "llama-3.1-8b", "qwen3-30b-a3b", "granite-4.0-h-small", "gemma-3-12b",
)  # fmt: skip


def planned(
    name: str, *vram_gib: float, n_ctx: int = 8192, **changes: object
) -> tuple[Plan, Planner]:
    """Plan a model of the catalogue on GPUs of some sizes, with 64 GiB of RAM."""
    planner = Planner(remembers=True)
    path = planner.add(find_entry(name).model())
    configuration = replace(Configuration(path, n_ctx), **changes)  # type: ignore[arg-type]
    sizes = tuple(round(size * GIB) for size in vram_gib)
    setup = Setup(configuration, "llama-server", PlannedMachine(sizes, ram_bytes=64 * GIB))
    return planner.plan(setup), planner


def option_named(name: str) -> PlanOption:
    return next(option for option in OPTIONS if option.name == name)
