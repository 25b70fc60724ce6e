"""A plan: a configuration with its cost, the largest context that fits, and its arguments."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from engine.configuration import Configuration, KVTypes
from engine.errors import ModelFileError
from engine.events import BufferSize
from engine.memory.bandwidth import TYPICAL, Bandwidth
from engine.memory.cards import find_card
from engine.memory.estimate import Companions, Estimate, Estimator, estimate, max_n_ctx, slots_text
from engine.memory.hardware import Device
from engine.memory.terms import TARGETS, DeviceEstimate, Target
from engine.memory.units import GIB
from engine.model.architecture import Model, read_model
from engine.model.gguf import GgufFile, read_gguf
from engine.model.identity import ModelKind, check_adapter, kind_of
from engine.model.speeds import ModelSpeed
from engine.planning.draft_advice import objection
from engine.planning.machine import PlannedMachine
from engine.planning.speed import SpeedBound, speed_bound
from engine.planning.verdict import FitVerdict, device_verdict, shortages, verdict_of
from engine.policy.choice import Basis
from engine.policy.known import Known, Standing
from engine.presets.export import DEFAULT_MARGIN_BYTES
from engine.presets.llama_server import PROGRAM, arguments

MAX_ESTIMATES = 4096
"""Cached estimates: about 20 MB, enough for the table and some hundred changes."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Input of a plan: a configuration, the program that runs it, and the machine."""

    configuration: Configuration
    target: Target = "kvchat"
    machine: PlannedMachine = field(default_factory=PlannedMachine)
    margin_bytes: int = DEFAULT_MARGIN_BYTES
    """Memory that stays free on every device."""

    def with_configuration(self, configuration: Configuration) -> "Setup":
        """Replace the configuration."""
        return replace(self, configuration=configuration)

    def with_values(self, **values: object) -> "Setup":
        """Replace fields of the configuration, given by name."""
        now: Configuration = replace(self.configuration, **values)  # type: ignore[arg-type]  # by name
        return replace(self, configuration=now)


@dataclass(frozen=True, slots=True)
class Plan:
    """The memory and speed of a setup."""

    setup: Setup
    model: Model
    estimate: Estimate
    max_n_ctx: int | None
    """Largest context that fits, at most the training context; None if none fits."""
    draft: Model | None = None
    known: Known = field(default_factory=Known)
    """Measured quality of the model's K/V types."""
    speed: ModelSpeed | None = None
    """Speed measured in kvchat on this machine, with the settings of the measurement."""
    bound: SpeedBound | None = None
    """Upper bound of the speed by memory bandwidth; None if a bandwidth is unknown."""
    unused_gpus: tuple[str, ...] = ()
    """GPUs of this machine that kvchat's build of llama.cpp cannot use."""

    @property
    def types(self) -> KVTypes:
        """The K/V types."""
        return self.setup.configuration.kv_types

    @property
    def torch_cache(self) -> str | None:
        """The torch cache type that replaces the K/V types."""
        now = self.setup.configuration
        is_used = now.backend == "torch" and self.setup.target == "kvchat"
        return now.kv_cache if is_used else None

    @property
    def quality(self) -> Standing:
        """Quality of the K/V types, or of the torch cache type."""
        if self.torch_cache is not None:
            return Standing(Basis.UNKNOWN, f"{self.torch_cache} was not measured", "?")
        return self.known.standing(self.types)

    @property
    def fits(self) -> bool:
        """Whether every device keeps the margin free."""
        return self.estimate.fits(self.setup.margin_bytes)

    @property
    def verdict(self) -> FitVerdict:
        """The worst verdict among the devices."""
        return verdict_of(self.estimate, self.setup.margin_bytes)

    @property
    def used_devices(self) -> tuple[DeviceEstimate, ...]:
        """The devices that hold something."""
        return tuple(device for device in self.estimate.devices if device.total_bytes)

    def device_verdict(self, device: DeviceEstimate) -> FitVerdict:
        """Whether one of the devices fits."""
        return device_verdict(device, self.setup.margin_bytes)

    @property
    def shortages(self) -> tuple[str, ...]:
        """Text with the memory that each device lacks; empty if the plan fits."""
        return shortages(self.estimate, self.setup.margin_bytes)

    @property
    def is_limited_by_training(self) -> bool:
        """Whether the training context, not memory, limits the context."""
        limit = n_ctx_limit(self.model, self.setup)
        return self.max_n_ctx is not None and self.max_n_ctx >= limit

    @property
    def exported(self) -> Configuration:
        """The configuration to export, without GPU layers if the machine has no GPU."""
        now = self.setup.configuration
        if now.rpc_workers or any(each.device.kind == "gpu" for each in self.estimate.devices):
            return now
        return now.on_cpu

    @property
    def arguments(self) -> list[str]:
        """Arguments of llama-server."""
        return arguments(self.exported)

    @property
    def command_line(self) -> str:
        """The command of llama-server, quoted for a shell."""
        return shlex.join([PROGRAM, *self.arguments])


@dataclass(frozen=True, slots=True)
class ModelSources:
    """Sources in which models are found by name."""

    folders: Callable[[], Sequence[Path]] = tuple
    """Returns the model folders; called when a name is looked up."""
    headers_dir: Path | None = None
    """Cache folder for remote headers; None disables the cache."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The model and GPUs that a setup's options depend on."""

    model: Model
    gpus: tuple[Device, ...]


class Planner:
    """Makes plans; headers and devices are read once."""

    def __init__(
        self,
        *,
        sources: ModelSources | None = None,
        loaded: tuple[BufferSize, ...] = (),
        quality: Callable[[Model], Known] = lambda _: Known(),
        speeds: Callable[[Model], ModelSpeed | None] = lambda _: None,
        bandwidths: Callable[[Device], Bandwidth | None] = lambda _: None,
        here: tuple[Device, ...] | None = None,
        remembers: bool = False,
    ) -> None:
        """Prepare to plan.

        Args:
            sources: Where models are looked for by name.
            loaded: Buffers of the loaded engine, which another load would free.
            quality: Returns the measured quality of a model's K/V types; called once a model.
            speeds: Returns the measured speed of a model; called once a model.
            bandwidths: Returns the memory bandwidth of a device of this machine.
            here: Devices of this machine; None detects them.
            remembers: Whether estimates are cached, for a screen with a table.
        """
        self.sources = sources or ModelSources()
        self._loaded = loaded
        self._models: dict[Path, Model] = {}
        self._files: dict[Path, GgufFile] = {}
        self._devices: dict[tuple[PlannedMachine, Target], tuple[Device, ...]] = {}
        if here is not None:
            self._devices = {(PlannedMachine(), target): here for target in TARGETS}
        self._quality = quality
        self._bandwidths = bandwidths
        self._known: dict[Path, Known] = {}
        self._speed_of = lru_cache(maxsize=None)(lambda path: speeds(self.model(path)))
        self._cost = lru_cache(MAX_ESTIMATES)(self._estimate) if remembers else self._estimate

    def plan(self, setup: Setup) -> Plan:
        """Compute the memory, speed and verdict of a setup.

        Raises:
            ModelFileError: a model cannot be read.
            PresetError: a combination that llama.cpp refuses.
        """
        now, cost = setup.configuration, self.estimator(setup)
        model = self.model(now.model_path)
        limit = n_ctx_limit(model, setup)
        largest = max_n_ctx(now, cost, n_ctx_limit=limit, margin_bytes=setup.margin_bytes)
        draft = None if now.draft is None else self.model(now.draft.model_path)
        found, path, machine = cost(now), model.file.path, setup.machine
        is_here = setup.target == "kvchat" and machine.is_here
        speed = self._speed_of(path) if is_here else None
        bound = speed_bound(model, found, self.bandwidths(machine), speed)
        known = self.known(path, machine)
        unused: tuple[str, ...] = ()
        if setup.target == "kvchat" and machine.has_own_gpus:
            usable, here = self.devices(machine, "kvchat"), self.devices(machine, "llama-server")
            unused = tuple(each.name for each in here if each.kind == "gpu" and each not in usable)
        return Plan(setup, model, found, largest, draft, known, speed, bound, unused)

    def bandwidths(self, machine: PlannedMachine) -> Callable[[Device], Bandwidth | None]:
        """The memory bandwidth of a machine's devices, as a function.

        RAM of a typed size belongs to another machine and gets a typical bandwidth.
        """
        unified = machine.unified_card

        def of(device: Device) -> Bandwidth | None:
            if device.kind == "gpu":
                return self._bandwidths(device)
            if unified is not None:
                return self._bandwidths(find_card(unified).device())
            return TYPICAL if machine.ram_bytes is not None else self._bandwidths(device)

        return of

    def known(self, model_path: Path, machine: PlannedMachine) -> Known:
        """Measured quality of a model's K/V types; measured speeds count on this machine only.

        Raises:
            ModelFileError: the model cannot be read.
        """
        if model_path not in self._known:
            self._known[model_path] = self._quality(self.model(model_path))
        found = self._known[model_path]
        return replace(found, has_rates=found.has_rates and machine.is_here)

    def estimator(self, setup: Setup) -> Estimator:
        """The estimator for other configurations of the same program and machine.

        Raises:
            ModelFileError: a header of the setup cannot be read.
            HardwareError: the machine cannot be.
        """
        self.model(setup.configuration.model_path)
        self._companions(setup.configuration)
        self.devices_of(setup)
        target, machine = setup.target, setup.machine
        return lambda configuration: self._cost(configuration, target, machine)

    def _estimate(self, now: Configuration, target: Target, machine: PlannedMachine) -> Estimate:
        return estimate(
            self.model(now.model_path),
            now,
            self.devices(machine, target),
            target=target,
            companions=self._companions(now),
        )

    def _companions(self, configuration: Configuration) -> Companions:
        """The headers of the files that run beside the model."""
        draft, projector = configuration.draft, configuration.mmproj_path
        adapters = tuple(self._file(path, ModelKind.ADAPTER) for path in configuration.lora_paths)
        for adapter in adapters:
            check_adapter(adapter, self.model(configuration.model_path).file)
        return Companions(
            None if draft is None else self.model(draft.model_path),
            None if projector is None else self._file(projector, ModelKind.PROJECTOR),
            adapters,
        )

    def _file(self, path: Path, kind: ModelKind) -> GgufFile:
        file = self._files.get(path) or read_gguf(path)
        if (found := kind_of(file)) is not kind:
            raise ModelFileError(
                f"{path.name} cannot be used as {kind}: its header declares {found}"
            )
        self._files[path] = file
        return file

    def add(self, model: Model) -> Path:
        """Add a model that is not a local file; returns the path to request it by."""
        self._models[model.file.path] = model
        return model.file.path

    def has(self, path: Path) -> bool:
        """Whether the header of a model was read or added."""
        return path in self._models

    def model(self, path: Path) -> Model:
        """A model's header.

        Raises:
            ModelFileError: it cannot be read.
        """
        if path not in self._models:
            self._models[path] = read_model(path)
        return self._models[path]

    def take_headers(self, other: "Planner") -> None:
        """Copy the headers that another planner has read."""
        self._models |= other._models
        self._files |= other._files

    def facts_of(self, setup: Setup) -> Facts:
        """The facts of a setup whose model was read."""
        gpus = tuple(device for device in self.devices_of(setup) if device.kind == "gpu")
        return Facts(self.model(setup.configuration.model_path), gpus)

    def devices_of(self, setup: Setup) -> tuple[Device, ...]:
        """The devices of a setup.

        Raises:
            HardwareError: a card is not known, or the parts make no machine.
        """
        return self.devices(setup.machine, setup.target)

    def devices(
        self, machine: PlannedMachine, target: Target = "llama-server"
    ) -> tuple[Device, ...]:
        """The devices of a machine that a program can use; raises as `devices_of` does."""
        key = machine, target
        if key not in self._devices:
            found = with_unique_names(machine.devices(target))
            own = {"gpu"} if machine.has_own_gpus else set()
            own |= {"cpu"} if machine.ram_bytes is None else set()
            self._devices[key] = with_loaded_freed(found, self._loaded, own)
        return self._devices[key]

    def machine_of(
        self, machine: PlannedMachine, vram_gib: float | None, target: Target
    ) -> PlannedMachine:
        """The machine with the GPU memory of a preset, unless its GPUs are typed or it has none.

        Raises:
            HardwareError: a card is not known, or the parts make no machine.
        """
        if vram_gib is None or not machine.has_gpu or machine.n_named_gpus:
            return machine
        found = self.devices(machine, target)
        if target == "kvchat" and all(device.kind == "cpu" for device in found):
            return machine
        return replace(machine, vram_bytes=(round(vram_gib * GIB),))


def with_unique_names(found: tuple[Device, ...]) -> tuple[Device, ...]:
    """Number GPUs that share a name, so that an estimate can distinguish them."""
    names = [device.name for device in found]
    return tuple(
        replace(device, name=f"GPU {index} · {device.name}")
        if device.kind == "gpu" and names.count(device.name) > 1
        else device
        for index, device in enumerate(found)
    )


def with_loaded_freed(
    found: tuple[Device, ...], loaded: Iterable[BufferSize], own: Set[str]
) -> tuple[Device, ...]:
    """Count what the loaded engine has allocated on this machine's devices as free.

    Weights that are pages of the file count as free already.
    """
    freed: dict[int | None, int] = {}
    for buffer in loaded:
        if not buffer.is_mapped:
            index = device_index(buffer)
            freed[index] = freed.get(index, 0) + buffer.nbytes
    devices = []
    for number, device in enumerate(found):
        index = None if device.kind == "cpu" else number
        extra = freed.get(index, 0) if device.kind in own else 0
        free = min(device.free_bytes + extra, device.total_bytes)
        devices.append(replace(device, free_bytes=free))
    return tuple(devices)


def device_index(buffer: BufferSize) -> int | None:
    """The GPU number of a buffer in llama.cpp's order; None for the CPU."""
    if buffer.device.startswith(("CPU", "AMX")) or buffer.device.endswith("_Host"):
        return None
    return int("".join(filter(str.isdigit, buffer.device)) or 0)  # `Metal` is the only one


def n_ctx_limit(model: Model, setup: Setup) -> int:
    """The training context times the number of slots."""
    return model.architecture.n_ctx_train * setup.configuration.n_slots


def warnings_of(plan: Plan) -> tuple[str, ...]:
    """Warnings about a plan, before it is loaded."""
    setup, own = plan.setup, [*_absences(plan), *plan.known.notes]
    is_llama_cpp = setup.configuration.backend == "llama.cpp"
    if setup.target == "kvchat" and not is_llama_cpp:
        own.append(_torch_text(setup.configuration))
    if setup.target == "kvchat" and is_llama_cpp and setup.configuration.n_slots > 1:
        found = tuple(each.device for each in plan.estimate.devices)
        own.append(slots_text(plan.model.architecture, setup.configuration, found))
    if plan.draft is not None:
        on_gpu = any(each.device.kind == "gpu" for each in plan.used_devices)
        doubt = objection(plan.model.file, plan.draft.file, "gpu" if on_gpu else "cpu")
        own += [] if doubt is None else [doubt]
    return (*own, *plan.estimate.warnings)


def _torch_text(now: Configuration) -> str:
    """Warning about torch settings that llama-server does not have."""
    lost = {name: getattr(now, name) for name in ("dtype", "kv_cache", "compile", "decode_plan")}
    texts = [
        f"{name} {value}" for name, value in lost.items() if value not in (None, "auto", "off")
    ]
    without = f" without {', '.join(texts)}" if texts else ""
    return (
        f"the backend is torch, but llama-server uses llama.cpp{without}, with {now.type_k} "
        f"keys and {now.type_v} values"
    )


def _absences(plan: Plan) -> Iterator[str]:
    """Files and workers named in a plan's commands that were not checked."""
    file, now = plan.model.file, plan.setup.configuration
    if plan.unused_gpus:
        yield (
            f"{', '.join(plan.unused_gpus)} cannot be used, because this llama-cpp-python is a "
            "CPU build: install a GPU build, or plan with --target llama-server"
        )
    if now.rpc_workers and not plan.setup.machine.workers:
        yield (
            f"the memory of the workers {', '.join(now.rpc_workers)} is not planned: specify "
            f"their GPUs with --device, such as {now.rpc_workers[0]}:24GiB"
        )
    if file.origin is not None:
        yield (
            f"{file.path} is not on this machine; the plan uses the header of {file.origin}: "
            "download the file and use its path in the command"
        )
    if now.draft is not None and not now.draft.model_path.is_absolute():
        yield (
            f"the draft model {now.draft.model_path} is not on this machine: only its header was "
            "read"
        )
