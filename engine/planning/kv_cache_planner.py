"""The planner for scripts: one model, one machine, and the settings of one preset.

It gives the memory that a configuration needs, finds a better configuration, notifies
subscribers of changes, and exports to llama.cpp and LM Studio. It loads no model. See
`docs/planner.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.estimate import Estimate, with_n_ctx
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD
from engine.memory.terms import Target, TermKind
from engine.memory.units import GIB, format_bytes
from engine.model.architecture import Model
from engine.planning.changes import recommendation
from engine.planning.fit import SearchResult, configuration_rows, search_setup
from engine.planning.machine import PlannedMachine
from engine.planning.offload import Offload
from engine.planning.planner import Planner, Setup
from engine.planning.report import export_request
from engine.planning.request import PlanRequest, setup_of
from engine.planning.search import Goal, SearchLimits
from engine.presets import lm_studio
from engine.presets.library import preset_of
from engine.presets.llama_server import arguments
from engine.presets.preset import Preset, made_preset

DEFAULT_N_CTX = 4096
NAME = "planner"
LAYERS_ON_GPU = {Offload.NONE: "all", Offload.PARTIAL: "auto", Offload.FULL: 0}
LAYER_KEYS = {"n_gpu_layers", "n_cpu_moe"}
Settings = Mapping[str, object]
"""Preset keys and their values."""


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """Event for subscribers after a change."""

    before: Configuration
    after: Configuration
    changed: tuple[str, ...]
    """Names of the fields that differ."""


Subscriber = Callable[[ConfigurationChanged], None]


@dataclass(frozen=True, slots=True)
class CacheEstimate:
    """The memory that a configuration needs, in bytes, and a recommendation."""

    whole: Estimate
    """Every term of every device, with its source."""
    kv_bytes: int
    """KV cache of all slots on all devices."""
    state_bytes: int
    """Recurrent state, which does not grow with the context."""
    gpu_bytes: int
    cpu_bytes: int
    total_bytes: int
    """Everything, weights and buffers included."""
    bytes_per_token: float
    """KV cache that each further token of context needs."""
    fits: bool
    """Whether every device keeps the margin free."""
    recommendation: str
    """One sentence for the user."""


class KVCachePlanner:
    """Plans one model on one machine; after each change, the layers are placed again.

    `offload` is `none` (all layers on the GPUs), `partial` (moves to RAM what does not fit, experts
    first), `full` (all layers in RAM), or None after the number of layers was set or chosen by
    `optimize_for_vram`; the layers then stay where they are.
    """

    def __init__(
        self,
        model: str | Path | Model,
        *,
        of_devices: tuple[Device, ...] | None = None,
        target: Target = "llama-server",
        offload: Offload | None = Offload.PARTIAL,
        **settings: object,
    ) -> None:
        """Plan for a model on some devices (None: those of this machine).

        Args:
            model: A path, a name of the library or the catalogue (a quantisation may follow a
                colon), or a model that was read; an unknown one raises `ModelFileError`.
            of_devices: GPUs, and the CPU last.
            target: The program that will load the model.
            offload: Offload mode of the layers.
            settings: As for `update_config`.
        """
        self._planner = Planner(here=of_devices)
        self._machine = PlannedMachine()
        self._target: Target = target
        self._subscribers: list[Subscriber] = []
        start = {"model": self._name_of(model), "n_ctx": DEFAULT_N_CTX, "offload": offload}
        self._settings = _changed(start, settings)
        self._setup = self._setup_of(self._settings)

    @property
    def model(self) -> Model:
        """The header of the model."""
        return self._planner.model(self.configuration.model_path)

    @property
    def offload(self) -> Offload | None:
        """Offload mode of the layers; None after their number was set."""
        offload = self._settings["offload"]
        return None if offload is None else Offload(str(offload))

    @property
    def configuration(self) -> Configuration:
        """The current configuration."""
        return self._setup.configuration

    def set_model(self, model: str | Path | Model) -> None:
        """Plan for another model, named as at the start."""
        self.update_config(model=self._name_of(model))

    def set_draft(self, model: str | Path | Model | None) -> None:
        """Use a draft model with all its layers on the GPUs; None removes it.

        Raises `IncompatiblePairError` if its vocabulary differs from that of the model.
        """
        self.update_config(draft=None if model is None else {"model": self._name_of(model)})

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call a function after each change; returns the function that unsubscribes it."""
        self._subscribers.append(subscriber)

        def unsubscribe() -> None:
            if subscriber in self._subscribers:
                self._subscribers.remove(subscriber)

        return unsubscribe

    def update_config(self, **settings: object) -> Configuration:
        """Change `offload` and settings, which have the names of preset keys: all or none.

        Raises `PresetError` with each unknown name and each invalid value.
        """
        self._change(_changed(self._settings, settings))
        return self.configuration

    def estimate(self, n_ctx: int | None = None, n_slots: int | None = None) -> CacheEstimate:
        """The memory that the configuration needs, here or with another context or more slots.

        Raises `PresetError` if llama.cpp would refuse the configuration.
        """
        asked = {"n_ctx": n_ctx, "n_slots": n_slots}
        asked = {name: value for name, value in asked.items() if value is not None}
        setup = self._setup_of({**self._settings, **asked}) if asked else self._setup
        plan, now = self._planner.plan(setup), setup.configuration
        whole, kv_bytes = plan.estimate, _sum(plan.estimate, TermKind.KV)
        longer = with_n_ctx(now, now.n_ctx + PAD * (1 if now.kv_unified else now.n_slots))
        more = self._planner.estimator(setup)(longer)
        gpu_bytes = sum(d.total_bytes for d in whole.devices if d.device.kind == "gpu")
        return CacheEstimate(
            whole,
            kv_bytes,
            state_bytes=_sum(whole, TermKind.STATE),
            gpu_bytes=gpu_bytes,
            cpu_bytes=whole.total_bytes - gpu_bytes,
            total_bytes=whole.total_bytes,
            bytes_per_token=(_sum(more, TermKind.KV) - kv_bytes) / (more.n_ctx - whole.n_ctx),
            fits=plan.fits,
            recommendation=recommendation(plan, self._planner),
        )

    def optimize_for_vram(
        self, *vram_bytes: int, goal: Goal = Goal.BALANCED, limits: SearchLimits | None = None
    ) -> SearchResult:
        """Adopt the best configuration for GPUs of these sizes (none: those of the planner).

        Raises `DoesNotFitError` if nothing within the limits fits; the configuration stays.
        """
        machine = self._machine
        if vram_bytes:
            ram = self._planner.devices_of(self._setup)[-1]
            machine = PlannedMachine(vram_bytes=vram_bytes, ram_bytes=ram.total_bytes)
        setup = replace(self._setup, machine=machine)
        found = search_setup(setup, goal, self._planner, limits)
        chosen = preset_of(found.configuration, NAME).model_dump(exclude_unset=True)
        self._machine = machine
        self._change({"margin_gib": setup.margin_bytes / GIB, **chosen, "offload": None})
        return found

    def format_config(self) -> str:
        """The configuration and the memory that it needs, as a few lines of text."""
        cost = self.estimate()
        rows = [
            ("model", self.model.file.name),
            *configuration_rows(self.configuration, self.model),
            ("KV cache", format_bytes(cost.kv_bytes)),
            ("GPU", format_bytes(cost.gpu_bytes)),
            ("memory", format_bytes(cost.cpu_bytes)),
        ]
        return "\n".join([*(f"{name:<9} {text}" for name, text in rows), cost.recommendation])

    def llama_cpp_arguments(self) -> list[str]:
        """The arguments of llama-server, each value after its name."""
        return arguments(self.configuration)

    def lm_studio_json(self) -> str:
        """The file with LM Studio's load settings for the model."""
        return lm_studio.render(export_request(self._planner.plan(self._setup))).text

    def _change(self, settings: Settings) -> None:
        """Make settings the current ones and notify subscribers."""
        before, self._setup = self.configuration, self._setup_of(settings)
        self._settings, after = settings, self.configuration
        known = [each.name for each in fields(Configuration)]
        names = dict.fromkeys([*(name for name in settings if name in known), *known])
        changed = tuple(name for name in names if getattr(before, name) != getattr(after, name))
        for subscriber in tuple(self._subscribers) if changed else ():
            subscriber(ConfigurationChanged(before, after, changed))

    def _setup_of(self, settings: Settings) -> Setup:
        request = PlanRequest(target=self._target, machine=self._machine)
        setup = setup_of(request, self._planner, _rules(settings))
        self._planner.estimator(setup)(setup.configuration)  # raises what llama.cpp would refuse
        return setup

    def _name_of(self, model: str | Path | Model) -> str:
        return str(self._planner.add(model) if isinstance(model, Model) else model)


def _changed(settings: Settings, changes: Settings) -> Settings:
    """Settings with changes; a number of layers ends the offload mode."""
    layers = {"offload": None} if LAYER_KEYS & changes.keys() else {}
    return {**settings, **layers, **changes}


def _rules(settings: Settings) -> Preset:
    """The preset of settings; the error names the faults of all of them."""
    given = {"name": NAME, **settings}
    offload, fault = given.pop("offload"), ""
    if offload in LAYERS_ON_GPU:
        given |= {"n_gpu_layers": LAYERS_ON_GPU[Offload(str(offload))], "n_cpu_moe": 0}
    elif offload is not None:
        fault = f"offload is {str(offload)!r}: write one of {', '.join(LAYERS_ON_GPU)}"
    try:
        rules = made_preset(given, prefix="", unknown="an unknown setting")
    except PresetError as error:
        raise PresetError("; ".join(filter(None, (str(error), fault)))) from error
    if fault:
        raise PresetError(fault)
    return rules


def _sum(estimate: Estimate, kind: TermKind) -> int:
    return sum(device.term(kind).nbytes for device in estimate.devices)
