"""A search as a user asks for it: models by name, a machine by sizes or cards, a goal."""

from dataclasses import dataclass, field, replace

from engine.configuration import Configuration
from engine.memory.cards import planned_devices
from engine.memory.hardware import Device
from engine.memory.processor import Instructions
from engine.memory.terms import Target, TermKind
from engine.model.architecture import Model
from engine.planning.goals import Goal, Limits
from engine.planning.knobs import with_configuration
from engine.planning.planner import DEFAULT_MARGIN_BYTES, Plan, Planner, Setup
from engine.planning.request import Progress, take_model
from engine.planning.search import Found, search
from engine.presets.preset import SamplingRules


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine to plan for; what is not said is that of this one."""

    vram_bytes: tuple[int, ...] = ()
    cards: tuple[str, ...] = ()
    ram_bytes: int | None = None
    has_gpu: bool = True
    cpu: Instructions | None = None

    @property
    def is_planned(self) -> bool:
        """Whether its GPUs are other ones than those of this machine."""
        return bool(self.vram_bytes or self.cards) or not self.has_gpu

    def devices(self) -> tuple[Device, ...]:
        """Give its devices.

        Raises:
            HardwareError: a card is not known, or the parts make no machine.
        """
        return planned_devices(
            vram_bytes=self.vram_bytes,
            cards=self.cards,
            ram_bytes=self.ram_bytes,
            has_gpu=self.has_gpu,
            instructions=self.cpu,
        )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to search for."""

    model: str
    goal: Goal = Goal.BALANCED
    machine: Machine = field(default_factory=Machine)
    target: Target = "llama-server"
    draft: str | None = None
    n_slots: int = 1
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Fitted:
    """The best configuration for what was wanted."""

    wanted: Wanted
    model: Model
    found: Found

    @property
    def plan(self) -> Plan:
        """The same as a plan, for what takes one, such as an export."""
        found, wanted = self.found, self.wanted
        gpus = [d.device for d in found.estimate.devices if d.device.kind == "gpu"]
        sizes = tuple(gpu.free_bytes for gpu in gpus)
        cpu = wanted.machine.cpu
        setup = Setup(found.configuration, wanted.target, sizes, wanted.margin_bytes, cpu=cpu)
        return Plan(setup, self.model, found.estimate, found.configuration.n_ctx)


def fitted(wanted: Wanted, planner: Planner, *, progress: Progress | None = None) -> Fitted:
    """Give the best configuration for what is wanted.

    Raises:
        ModelFileError: a model is not there or cannot be read.
        HardwareError: the machine cannot be.
        DoesNotFitError: nothing that is allowed fits it.
    """
    devices = wanted.machine.devices()
    model = planner.model(take_model(wanted.model, planner, progress))
    draft = None
    if wanted.draft is not None:
        draft = planner.model(take_model(wanted.draft, planner, progress))
    found = search(
        model,
        devices,
        wanted.goal,
        target=wanted.target,
        margin_bytes=wanted.margin_bytes,
        draft=draft,
        base=Configuration(
            model.file.path,
            n_ctx=256,
            n_slots=wanted.n_slots,
            sampling=SamplingRules().settings(),
        ),
        limits=wanted.limits,
    )
    if not any(device.kind == "gpu" for device in devices):
        found = replace(found, configuration=_off_the_gpu(found.configuration))
    return Fitted(wanted, model, found)


def _off_the_gpu(configuration: Configuration) -> Configuration:
    """The same with nothing on a GPU, which the machine that runs it may have all the same."""
    draft = configuration.draft
    return replace(
        configuration,
        n_gpu_layers=0,
        draft=None if draft is None else replace(draft, n_gpu_layers=0),
    )


MEANINGS = {
    Goal.CONTEXT: "the most tokens, then the finest cache",
    Goal.QUALITY: "the finest cache, largest batches, then most tokens",
    Goal.SPEED: "a draft model, the finest cache, then the fastest layers",
    Goal.BALANCED: "32k tokens, a fine cache, and speed, weighed",
}
BESIDE = (TermKind.PROJECTOR, TermKind.ADAPTERS)
"""Parts that a search does not place: their memory is taken off before it begins."""


@dataclass(frozen=True, slots=True)
class Searched:
    """A setup that was found, and why."""

    setup: Setup
    found: Found


def search_setup(setup: Setup, goal: Goal, planner: Planner) -> Searched:
    """Give the best setup for a goal on the same machine; other knobs stay.

    Raises:
        DoesNotFitError: nothing fits.
        PresetError: llama.cpp refuses what the other knobs say.
    """
    now = setup.configuration
    draft = None if now.draft is None else planner.model(now.draft.model_path)
    found = search(
        planner.model(now.model_path),
        _free_for_search(setup, planner),
        goal,
        target=setup.target,
        margin_bytes=setup.margin_bytes,
        draft=draft,
        base=now,
    )
    return Searched(with_configuration(setup, found.configuration), found)


def _free_for_search(setup: Setup, planner: Planner) -> tuple[Device, ...]:
    """Give the devices without what projector and adapters take."""
    devices = planner.devices_of(setup)
    now = setup.configuration
    if now.mmproj_path is None and not now.lora_paths:
        return devices
    small = replace(now, n_ctx=256)
    taken = {
        device.device.name: sum(device.term(kind).nbytes for kind in BESIDE)
        for device in planner.estimator(setup)(small).devices
    }
    return tuple(
        replace(device, free_bytes=max(device.free_bytes - taken.get(device.name, 0), 0))
        for device in devices
    )
