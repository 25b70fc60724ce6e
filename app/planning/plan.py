"""A plan: a configuration with its cost, the largest context that fits, and its arguments."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from app.planning.calibrations import known_calibrations
from engine.configuration import Configuration
from engine.errors import ModelFileError
from engine.events import BufferSize
from engine.memory.calibration import Calibrations, calibrated
from engine.memory.estimate import Companions, Estimate, estimate, slots_text
from engine.memory.fit import Estimator, max_n_ctx
from engine.memory.hardware import Device, devices
from engine.memory.processor import Instructions
from engine.memory.terms import DeviceEstimate, Target
from engine.memory.units import MIB
from engine.model.architecture import Model, read_model
from engine.model.gguf import GgufFile, read_gguf
from engine.model.identity import ModelKind, kind_of
from engine.presets.export.llama_server import arguments, command_line

DEFAULT_MARGIN_BYTES = 512 * MIB
_Machine = tuple[tuple[int, ...], tuple[str, ...], int | None, Instructions | None]


@dataclass(frozen=True, slots=True)
class Setup:
    """What is asked: a configuration, the program that runs it, and the GPUs it runs on."""

    configuration: Configuration
    target: Target = "kvchat"
    vram_bytes: tuple[int, ...] = ()
    """Memory of each GPU to plan for; empty plans for those that were found."""
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    """Memory that is kept free on every device."""
    cards: tuple[str, ...] = ()
    """Cards to plan for by name, after those sizes; a machine with one memory stands alone."""
    ram_bytes: int | None = None
    """Main memory to plan for; None plans for what is free here."""
    cpu: Instructions | None = None
    """What the CPU to plan for can; None plans for that of a named machine, or of this one."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the machine is another one than this."""
        return bool(self.vram_bytes or self.cards or self.ram_bytes or self.cpu)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a setup costs."""

    setup: Setup
    model: Model
    estimate: Estimate
    max_n_ctx: int | None
    """Largest context that fits, at most what the model was trained on; None where none fits."""
    draft: Model | None = None

    @property
    def fits(self) -> bool:
        """Whether every device keeps the margin free."""
        return self.estimate.fits(self.setup.margin_bytes)

    @property
    def used_devices(self) -> tuple[DeviceEstimate, ...]:
        """The devices that hold something."""
        return tuple(device for device in self.estimate.devices if device.total_bytes)

    def device_fits(self, device: DeviceEstimate) -> bool:
        """Whether a device keeps the margin free, or holds nothing."""
        return not device.total_bytes or device.left_bytes >= self.setup.margin_bytes

    @property
    def is_limited_by_training(self) -> bool:
        """Whether more context would fit than the model was trained on."""
        return self.max_n_ctx is not None and self.max_n_ctx + 256 > n_ctx_limit(
            self.model, self.setup
        )

    @property
    def arguments(self) -> list[str]:
        """Arguments of llama-server."""
        return arguments(self.setup.configuration)

    @property
    def command_line(self) -> str:
        """The command of llama-server, quoted for a shell."""
        return command_line(self.setup.configuration)


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Give what the user should know about a plan before loading it."""
    setup, own = plan.setup, _absences(plan)
    if setup.target == "kvchat" and setup.configuration.n_slots > 1:
        found = tuple(each.device for each in plan.estimate.devices)
        own.append(slots_text(plan.model.architecture, setup.configuration, found))
    if plan.draft is not None:
        from engine.speculation.pairs import objection  # most plans have no draft

        on_gpu = any(each.device.kind == "gpu" for each in plan.used_devices)
        doubt = objection(plan.model.file, plan.draft.file, "gpu" if on_gpu else "cpu")
        own += [] if doubt is None else [doubt]
    return (*own, *plan.estimate.warnings)


def _absences(plan: Plan) -> list[str]:
    """Say which files the commands of a plan name that are not on this machine."""
    file, draft = plan.model.file, plan.setup.configuration.draft
    absent = []
    if file.origin is not None:
        absent.append(
            f"{file.path} is not on this machine, its header is that of {file.origin}: where it "
            "is named, write the path of the file once it is here"
        )
    if draft is not None and not draft.model_path.is_absolute():
        absent.append(
            f"the draft model {draft.model_path} is not on this machine: only its header was read"
        )
    return absent


class Planner:
    """Makes plans; headers and devices are read once."""

    def __init__(
        self,
        *,
        loaded: tuple[BufferSize, ...] = (),
        calibrations: Calibrations | None = None,
    ) -> None:
        """Prepare to plan.

        Args:
            loaded: What this process's engine has allocated: another load would free it.
            calibrations: What logs taught about cards; None reads what was kept.
        """
        self._loaded = loaded
        self._calibrations = calibrations
        self._models: dict[Path, Model] = {}
        self._files: dict[Path, GgufFile] = {}
        self._devices: dict[_Machine, tuple[Device, ...]] = {}

    def plan(self, setup: Setup) -> Plan:
        """Say what a setup costs.

        Raises:
            ModelFileError: a model cannot be read.
            PresetError: a combination that llama.cpp refuses.
        """
        model = self.model(setup.configuration.model_path)
        cost = self.estimator(setup)
        limit = n_ctx_limit(model, setup)
        largest = max_n_ctx(
            setup.configuration, cost, n_ctx_limit=limit, margin_bytes=setup.margin_bytes
        )
        draft = self._companions(setup.configuration).draft
        return Plan(setup, model, cost(setup.configuration), largest, draft)

    def estimator(self, setup: Setup) -> Estimator:
        """Give the cost of other configurations of the same models and devices."""
        model = self.model(setup.configuration.model_path)
        devices = self.devices_of(setup)
        companions = self._companions(setup.configuration)
        known = self._known_calibrations()

        def cost(configuration: Configuration) -> Estimate:
            found = estimate(
                model, configuration, devices, target=setup.target, companions=companions
            )
            return calibrated(found, known) if known else found

        return cost

    def _known_calibrations(self) -> Calibrations:
        if self._calibrations is None:
            self._calibrations = known_calibrations()
        return self._calibrations

    def _companions(self, configuration: Configuration) -> Companions:
        """Give the headers of the files that run beside the model."""
        draft, projector = configuration.draft, configuration.mmproj_path
        return Companions(
            None if draft is None else self.model(draft.model_path),
            None if projector is None else self._file(projector, ModelKind.PROJECTOR),
            tuple(self._file(path, ModelKind.ADAPTER) for path in configuration.lora_paths),
        )

    def _file(self, path: Path, kind: ModelKind) -> GgufFile:
        file = self._files.get(path) or read_gguf(path)
        if (found := kind_of(file)) is not kind:
            raise ModelFileError(f"{path.name} is no {kind}: its header says {found}")
        self._files[path] = file
        return file

    def add(self, model: Model) -> Path:
        """Take a model that is no file here, and give the path that it is known by."""
        self._models[model.file.path] = model
        return model.file.path

    def model(self, path: Path) -> Model:
        """Give a model's header.

        Raises:
            ModelFileError: it cannot be read.
        """
        if path not in self._models:
            self._models[path] = read_model(path)
        return self._models[path]

    def devices_of(self, setup: Setup) -> tuple[Device, ...]:
        """Give the devices of a setup.

        Raises:
            HardwareError: a card is not known, or the parts make no machine.
        """
        return self.devices(setup.vram_bytes, setup.cards, setup.ram_bytes, setup.cpu)

    def devices(
        self,
        vram_bytes: tuple[int, ...],
        cards: tuple[str, ...] = (),
        ram_bytes: int | None = None,
        cpu: Instructions | None = None,
    ) -> tuple[Device, ...]:
        """Give the devices to plan for; raises as `devices_of` does."""
        machine = (vram_bytes, cards, ram_bytes, cpu)
        if machine not in self._devices:
            found = told_apart(_devices(*machine))
            if ram_bytes is None:
                is_here = not vram_bytes and not cards
                found = _given_back(found, self._loaded, has_own_gpus=is_here)
            self._devices[machine] = found
        return self._devices[machine]


def told_apart(found: tuple[Device, ...]) -> tuple[Device, ...]:
    """Number the GPUs that have one name: an estimate adds up by device, and so does a reader."""
    names = [device.name for device in found]
    return tuple(
        replace(device, name=f"GPU {index} · {device.name}")
        if device.kind == "gpu" and names.count(device.name) > 1
        else device
        for index, device in enumerate(found)
    )


def _devices(
    vram_bytes: tuple[int, ...],
    cards: tuple[str, ...],
    ram_bytes: int | None,
    cpu: Instructions | None,
) -> tuple[Device, ...]:
    if not cards and ram_bytes is None and cpu is None:
        return devices(vram_bytes=vram_bytes)
    from engine.memory.cards import planned_devices

    return planned_devices(
        vram_bytes=vram_bytes, cards=cards, ram_bytes=ram_bytes, instructions=cpu
    )


def n_ctx_limit(model: Model, setup: Setup) -> int:
    """Give the longest context that makes sense: training, for every slot."""
    return model.architecture.n_ctx_train * setup.configuration.n_slots


def device_index(buffer: BufferSize) -> int | None:
    """Give the number of a buffer's GPU in llama.cpp's own order; None is the CPU."""
    if buffer.device.startswith("CPU") or buffer.device.endswith("_Host"):
        return None
    digits = "".join(character for character in buffer.device if character.isdigit())
    return int(digits) if digits else None


def _given_back(
    found: tuple[Device, ...], loaded: Iterable[BufferSize], *, has_own_gpus: bool
) -> tuple[Device, ...]:
    """Count as free what the engine has allocated now.

    Weights in main memory are pages of the file: they count as free already.
    """
    freed: dict[int | None, int] = {}
    for buffer in loaded:
        index = device_index(buffer)
        if index is not None or buffer.kind != "model":
            freed[index] = freed.get(index, 0) + buffer.nbytes
    given = []
    for index, device in enumerate(found):
        place = None if device.kind == "cpu" else index
        extra = freed.get(place, 0) if place is None or has_own_gpus else 0
        free = min(device.free_bytes + extra, device.total_bytes)
        given.append(replace(device, free_bytes=free))
    return tuple(given)
