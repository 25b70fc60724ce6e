"""One model, one machine, one configuration to change and to ask: the planner of scripts.

It says what a configuration costs, finds a better one, tells subscribers what changed, and gives
the arguments of llama.cpp and the settings of LM Studio. Nothing is loaded. See `docs/planner.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from pydantic import ValidationError

from engine.configuration import Configuration
from engine.errors import PresetError
from engine.memory.estimate import Estimate, with_n_ctx
from engine.memory.hardware import Device, devices
from engine.memory.kv_cache import PAD
from engine.memory.terms import Target, TermKind
from engine.memory.units import format_bytes
from engine.model.architecture import Model, read_model
from engine.model.catalog import DEFAULT_QUANTIZATION, find_entry
from engine.model.vocabulary import check_headers
from engine.planning.changes import recommendation
from engine.planning.exporting import export_request
from engine.planning.fit import SearchResult, configuration_rows, search_setup
from engine.planning.offload import Offload, fastest_fitting, filling, offload_levels
from engine.planning.options import OPTIONS, with_draft
from engine.planning.planner import DEFAULT_MARGIN_BYTES, Plan, Planner, Setup
from engine.planning.search import Goal, SearchLimits
from engine.presets import lm_studio
from engine.presets.llama_server import arguments
from engine.presets.preset import Preset, SamplingRules
from engine.validation import did_you_mean, explain

DEFAULT_N_CTX = 4096
NO_MODEL = Path()
CONFIGURED = {each.name for each in fields(Configuration)} - {"draft"}
"""Fields that take a plain value; a draft model is set with `set_draft`."""
SETTINGS = (
    *(each.name for each in OPTIONS if each.name in CONFIGURED),
    *("n_threads", "n_threads_batch"),
)
"""The fields of `Configuration` that a script changes: what the screen turns, and the threads."""
LAYERS = ("n_gpu_layers", "n_cpu_moe")


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """What subscribers get."""

    before: Configuration
    after: Configuration
    changed: tuple[str, ...]
    """Names of the fields that differ."""


Subscriber = Callable[[ConfigurationChanged], None]


@dataclass(frozen=True, slots=True)
class CacheEstimate:
    """What a configuration costs, and what to do about it."""

    whole: Estimate
    """Every term of every device, with its source."""
    bytes_per_token: float
    """Cache that one more token of context takes here."""
    fits: bool
    """Whether every device keeps the margin free."""
    recommendation: str
    """One sentence for the user."""

    @property
    def kv_bytes(self) -> int:
        """Keys and values of all slots, on all devices."""
        return _sum(self.whole, TermKind.KV)

    @property
    def state_bytes(self) -> int:
        """Recurrent state, which does not grow with the context."""
        return _sum(self.whole, TermKind.STATE)

    @property
    def gpu_bytes(self) -> int:
        return sum(d.total_bytes for d in self.whole.devices if d.device.kind == "gpu")

    @property
    def cpu_bytes(self) -> int:
        return self.total_bytes - self.gpu_bytes

    @property
    def total_bytes(self) -> int:
        """Everything, weights and buffers included."""
        return self.whole.total_bytes


class KVCachePlanner:
    """A configuration of one model on one machine; after each change its layers are placed anew.

    `offload` says how: `none` keeps all layers on the GPUs, `partial` moves to RAM what does not
    fit (experts first), `full` moves all. Layers that were set by number, or found by
    `optimize_for_vram`, stay where they are.
    """

    def __init__(
        self,
        model: str | Path | Model | None = None,
        *,
        of_devices: tuple[Device, ...] | None = None,
        target: Target = "llama-server",
        offload: Offload = Offload.PARTIAL,
        margin_bytes: int = DEFAULT_MARGIN_BYTES,
        **settings: object,
    ) -> None:
        """Take a model, a machine (None: this one) and settings, as `update_config` takes them.

        Raises:
            ModelFileError: the model is not known or cannot be read.
            PresetError: a setting is not known or impossible.
        """
        self._planner = Planner(here=of_devices)
        self._subscribers: list[Subscriber] = []
        self._draft: Path | None = None
        self.offload: Offload | None = offload
        """How layers are placed; None where their number was set."""
        sampling = SamplingRules().settings()
        start = Configuration(model_path=NO_MODEL, n_ctx=DEFAULT_N_CTX, sampling=sampling)
        self._setup = Setup(start, target, margin_bytes=margin_bytes)
        if model is not None:
            self.set_model(model)
        if settings:
            self.update_config(**settings)

    @property
    def model(self) -> Model:
        """The model that is planned for.

        Raises:
            PresetError: none was set; nothing is ever guessed without one.
        """
        if self.configuration.model_path == NO_MODEL:
            raise PresetError(
                "no model is set: pass a name from the catalogue, a GGUF file, or a loaded model"
            )
        return self._planner.model(self.configuration.model_path)

    @property
    def configuration(self) -> Configuration:
        """The current configuration."""
        return self._setup.configuration

    def set_model(
        self, model: str | Path | Model, quantization: str = DEFAULT_QUANTIZATION
    ) -> None:
        """Plan for another model: a name of the catalogue, a GGUF file, or a model that was read.

        Raises:
            ModelFileError: the name is not known, with those that come near; or no such file.
        """
        found = _model(model, quantization)
        if self._draft is not None:
            check_headers(found.file, self._planner.model(self._draft).file)
        self._take(self._setup.with_values(model_path=self._planner.add(found)), self.offload)

    def set_draft(
        self, model: str | Path | Model | None, quantization: str = DEFAULT_QUANTIZATION
    ) -> None:
        """Let a small model draft, all of it on the GPUs; None ends that.

        Raises:
            ModelFileError: the name is not known, or no such file.
            IncompatiblePairError: its header shows another vocabulary.
        """
        path = None
        if model is not None:
            draft = _model(model, quantization)
            check_headers(self.model.file, draft.file)
            path = self._planner.add(draft)
        self._draft = path
        self._take(with_draft(self._setup, path), self.offload)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call a function at each change from now on, until what is returned is called."""
        self._subscribers.append(subscriber)
        return lambda: self.unsubscribe(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Call a function no more; one that is not subscribed is no error."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def update_config(self, **settings: object) -> Configuration:
        """Change settings by the names of `Configuration`, or `offload`; all or none are taken.

        Raises:
            PresetError: a name is not known or a value impossible; each is named.
        """
        changed, offload = self._changed(settings)
        if offload is None and not set(LAYERS) & set(settings):
            offload = self.offload
        self._take(changed, offload)
        self.offload = offload
        return self.configuration

    def estimate(self, n_ctx: int | None = None, n_slots: int | None = None) -> CacheEstimate:
        """What the configuration costs, or would with another context or more slots.

        Raises:
            PresetError: no model is set, or llama.cpp would refuse the configuration.
        """
        asked = {"n_ctx": n_ctx, "n_slots": n_slots}
        plan = self._plan({name: value for name, value in asked.items() if value is not None})
        whole, now = plan.estimate, plan.setup.configuration
        longer = with_n_ctx(now, now.n_ctx + PAD * (1 if now.kv_unified else now.n_slots))
        more = self._planner.estimator(plan.setup)(longer)
        added = _sum(more, TermKind.KV) - _sum(whole, TermKind.KV)
        return CacheEstimate(
            whole,
            added / (more.n_ctx - whole.n_ctx),
            plan.fits,
            recommendation(plan, self._planner),
        )

    def optimize_for_vram(
        self, *vram_bytes: int, goal: Goal = Goal.BALANCED, limits: SearchLimits | None = None
    ) -> SearchResult:
        """Take the best configuration for GPUs of these sizes (none: those of the planner).

        Raises:
            DoesNotFitError: nothing that the limits allow fits; the configuration stays.
            HardwareError: a size is zero or negative.
        """
        assert self.model
        planner = self._planner
        if vram_bytes:
            cpu = planner.devices_of(self._setup)[-1]
            gpus = devices(vram_bytes=vram_bytes, ram_bytes=cpu.total_bytes)[:-1]
            planner = Planner(here=(*gpus, cpu))
            planner.take_headers(self._planner)
        setup = self._setup if self._draft is None else with_draft(self._setup, self._draft)
        found = search_setup(setup, goal, planner, limits)
        self._planner, self.offload = planner, None
        self._take(setup.with_configuration(found.configuration), None)
        return found

    def format_config(self) -> str:
        """The configuration and its cost as a few lines of text."""
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
        """The arguments of llama-server, each value beside its name."""
        return arguments(self.configuration)

    def lm_studio_json(self) -> str:
        """LM Studio's defaults of the model, in the format that it reads."""
        return lm_studio.render(export_request(self._plan({}))).text

    def _plan(self, changes: Mapping[str, object]) -> Plan:
        assert self.model
        return self._planner.plan(self._placed(self._changed(changes)[0], self.offload))

    def _take(self, changed: Setup, offload: Offload | None) -> None:
        """Make a setup the current one, with its layers placed, and tell subscribers."""
        before = self.configuration
        if changed.configuration.model_path != NO_MODEL:
            changed = self._placed(changed, offload)
        self._setup, after = changed, changed.configuration
        names = dict.fromkeys((*SETTINGS, *(each.name for each in fields(Configuration))))
        differing = tuple(n for n in names if getattr(before, n) != getattr(after, n))
        for subscriber in tuple(self._subscribers) if differing else ():
            subscriber(ConfigurationChanged(before, after, differing))

    def _placed(self, setup: Setup, offload: Offload | None) -> Setup:
        """The setup with its layers where `offload` has them.

        Raises:
            PresetError: llama.cpp would refuse the configuration.
        """
        now, cost = setup.configuration, self._planner.estimator(setup)
        if offload is None:
            cost(now)
            return setup
        model = self._planner.model(now.model_path)
        levels = offload_levels(model, self._planner.devices_of(setup), offload)
        found = fastest_fitting(now, levels, cost, setup.margin_bytes)
        return setup.with_configuration(found or filling(now, levels, cost, setup.margin_bytes))

    def _changed(self, settings: Mapping[str, object]) -> tuple[Setup, Offload | None]:
        """The setup with other settings, by the rules of presets, and how layers are placed.

        Raises:
            PresetError: a name is not known or a value impossible; every fault is named.
        """
        known, offload = (*SETTINGS, "offload"), settings.get("offload")
        listed = f": the settings are {', '.join(known)}"
        values = {name: value for name, value in settings.items() if name in SETTINGS}
        faults = [
            f"unknown setting: {name}{did_you_mean(name, known) or listed}"
            for name in settings
            if name not in known
        ]
        if offload is not None and offload not in set(Offload):
            faults.append(f"offload is {str(offload)!r}: write one of {', '.join(Offload)}")
        faults += [
            f"{name} is 'auto': specify a type, or let optimize_for_vram choose"
            for name in ("type_k", "type_v")
            if values.get(name) == "auto"
        ]
        plain = {k: "all" if k in LAYERS and v == -1 else v for k, v in values.items()}
        try:
            rules = Preset.model_validate({"name": "planner", **plain})
        except ValidationError as error:
            faults += (f"{'.'.join(where)}{fault}" for where, fault in explain(error, Preset))
        if faults:
            raise PresetError("; ".join(faults))
        found = {name: getattr(rules, name) for name in values}
        changed = self._setup.with_values(**{k: -1 if v == "all" else v for k, v in found.items()})
        now = with_n_ctx(changed.configuration, changed.configuration.n_ctx)
        return changed.with_configuration(now), None if offload is None else Offload(str(offload))


def _model(model: str | Path | Model, quantization: str) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, Path) or model.endswith(".gguf"):
        return read_model(Path(model))
    return find_entry(model).model(quantization)


def _sum(estimate: Estimate, kind: TermKind) -> int:
    return sum(device.term(kind).nbytes for device in estimate.devices)
