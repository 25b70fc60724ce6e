"""A search as a user asks for it: models by name, a machine by sizes or cards, a goal."""

from dataclasses import dataclass, field, replace

from app.planning.model_source import Progress, take_model
from app.planning.plan import DEFAULT_MARGIN_BYTES, Plan, Planner, Setup
from engine.configuration import Configuration
from engine.memory.cards import planned_devices
from engine.memory.hardware import Device
from engine.memory.processor import Instructions
from engine.memory.search import Found, Goal, Limits, search
from engine.memory.terms import Target
from engine.model.architecture import Model
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
