"""The machine to plan for: detected devices, typed sizes, or cards by name."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from engine.configuration import Target
from engine.errors import HardwareError
from engine.memory import hardware
from engine.memory.cards import TypedGpu, find_card, parse_devices, planned_devices
from engine.memory.hardware import Device, Instructions
from engine.memory.units import GIB, format_bytes
from engine.planning.values import FOUND, GPU_SIZES, OptionError, step_among
from engine.planning.workers import RpcWorker, workers_of


@dataclass(frozen=True, slots=True)
class PlannedMachine:
    """The machine to plan for; fields that are not set are those of this machine."""

    vram_bytes: tuple[int, ...] = ()
    """Memory of each GPU; empty for the detected ones."""
    cards: tuple[str, ...] = ()
    """Cards by name, after `vram_bytes`; a machine with unified memory stands alone."""
    ram_bytes: int | None = None
    """RAM; None is the free RAM of this machine."""
    cpu: Instructions | None = None
    """Instruction sets of the CPU; None for those of the named machine, or of this one."""
    has_gpu: bool = True
    """False ignores the detected GPUs."""
    workers: tuple[RpcWorker, ...] = ()
    """Other machines that compute some of the layers for llama-server."""
    net_gbps: float = 1.0
    """Bandwidth of the network between them, in 10^9 bits per second."""

    @property
    def is_here(self) -> bool:
        """Whether the planned machine is this machine, unchanged."""
        return self == PlannedMachine()

    @property
    def has_own_gpus(self) -> bool:
        """Whether its GPUs are those of this machine."""
        return self.has_gpu and not (self.vram_bytes or self.cards or self.workers)

    @property
    def n_named_gpus(self) -> int:
        """Number of GPUs that were given by size or card."""
        return len(self.vram_bytes) + len(self.cards)

    @property
    def n_gpus(self) -> int:
        """Number of GPUs named here and on workers; 0 for the detected ones."""
        return self.n_named_gpus + sum(worker.n_gpus for worker in self.workers)

    @property
    def unified_card(self) -> str | None:
        """The card that is a whole machine, whose GPU shares the RAM."""
        return next((card for card in self.cards if find_card(card).is_unified), None)

    def devices(self, target: Target) -> tuple[Device, ...]:
        """The devices that a program can use; those of workers come first, as in llama.cpp.

        kvchat uses a GPU of this machine only if llama-cpp-python was built for one. What another
        program was built for is unknown, so it gets every GPU. Raises `HardwareError`.
        """
        is_unusable = target == "kvchat" and self.has_own_gpus and not hardware.has_gpu_backend()
        own = planned_devices(
            vram_bytes=self.vram_bytes,
            cards=self.cards,
            ram_bytes=self.ram_bytes,
            has_gpu=self.has_gpu and not is_unusable,
            instructions=self.cpu,
        )
        return (*(device for worker in self.workers for device in worker.devices()), *own)


def format_gpus(machine: PlannedMachine) -> str:
    """The GPUs as they can be typed: `found`, `8 GiB`, `2x24 GiB`, `RTX 4090`, `host1:24 GiB`."""
    groups = [("", machine.vram_bytes, machine.cards)]
    groups += [(f"{each.endpoint}:", each.vram_bytes, each.cards) for each in machine.workers]
    parts = []
    for host, sizes, cards in groups:
        counts = Counter((*map(format_size, sizes), *cards))
        for name, count in counts.items():
            parts.append(host + (name if count == 1 else f"{count}x{name}"))
    return " + ".join(parts) or FOUND


def parse_gpus(machine: PlannedMachine, text: str) -> PlannedMachine:
    """The machine with typed sizes and cards: `8GiB`, `2x24`, `RTX 3060 + 12GiB`, `host1:24GiB`."""
    if text.strip().lower() in ("", FOUND):
        return with_gpus(machine, ())
    try:
        typed = parse_devices(text)
    except HardwareError as error:
        raise OptionError(
            f"{error}; separate devices with commas, or type `found` for the GPUs of this machine"
        ) from error
    sizes, cards = named_gpus(typed)
    return replace(with_gpus(machine, sizes, cards), workers=workers_of(typed))


def named_gpus(typed: Iterable[TypedGpu]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and cards of the GPUs that belong to no worker."""
    own = [gpu for gpu in typed if gpu.endpoint is None]
    sizes = tuple(gpu.nbytes for gpu in own if gpu.nbytes is not None)
    return sizes, tuple(gpu.card for gpu in own if gpu.card is not None)


def step_gpus(machine: PlannedMachine, gpus: tuple[Device, ...], step: int) -> PlannedMachine:
    """Step through common sizes of a single GPU, then back to the detected GPUs."""
    if machine.n_gpus > 1 or machine.workers:
        return with_gpus(machine, ())
    now = gpus[0].total_bytes if machine.n_named_gpus else 0
    stop = step_among((0, *GPU_SIZES), now, step)
    return with_gpus(machine, (stop,) if stop else ())


def with_gpus(
    machine: PlannedMachine, vram_bytes: tuple[int, ...], cards: tuple[str, ...] = ()
) -> PlannedMachine:
    """The machine with other GPUs; a card that is a whole machine brings its own RAM."""
    changed = replace(machine, vram_bytes=vram_bytes, cards=cards, workers=())
    if changed.unified_card is None:
        return changed
    if changed.n_named_gpus > 1:
        raise OptionError(
            f"{cards[0]} has unified memory, so it cannot be combined with other devices"
        )
    return replace(changed, ram_bytes=None)


def format_size(nbytes: int) -> str:
    """A size as it can be typed: whole GiB without decimals."""
    return f"{nbytes // GIB} GiB" if nbytes % GIB == 0 else format_bytes(nbytes)
