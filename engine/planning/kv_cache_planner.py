"""One model, one machine, one configuration to change and to ask: the planner of scripts.

It answers what a configuration costs, finds a better one, tells subscribers what changed, and hands
over the arguments of llama.cpp and the settings of LM Studio. Nothing is loaded, and there is no
planner but those that are made. See `docs/manager.md`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
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
from engine.planning.explain import configuration_rows
from engine.planning.exporting import export_request
from engine.planning.fit import search_setup
from engine.planning.goals import Goal, Limits, Offload
from engine.planning.knobs import KNOBS, with_draft
from engine.planning.placements import Placement, fastest_fitting, laid, placements
from engine.planning.planner import (
    DEFAULT_MARGIN_BYTES,
    Plan,
    Planner,
    Setup,
    Verdict,
    n_ctx_limit,
)
from engine.planning.search import SearchResult
from engine.planning.what_if import what_ifs
from engine.presets.preset import Preset, SamplingRules
from engine.presets.programs import lm_studio
from engine.presets.programs.llama_server import arguments
from engine.validation import explain, nearest

DEFAULT_N_CTX = 4096
THREADS = ("n_threads", "n_threads_batch")
CONFIGURED = {each.name for each in fields(Configuration)} - {"draft"}
"""Fields that take a plain value; a draft model is set with `set_draft`."""
NO_MODEL = Path()
SETTINGS = (
    *(each.name for each in KNOBS if each.name in CONFIGURED),
    *THREADS,
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

    kv_bytes: int
    """Keys and values of all slots, on all devices."""
    state_bytes: int
    """Recurrent state, which does not grow with the context."""
    bytes_per_token: float
    """Cache that one more token of context takes here."""
    gpu_bytes: int
    cpu_bytes: int
    fits: bool
    """Whether every device keeps the margin free."""
    recommendation: str
    """One sentence for the user."""
    whole: Estimate
    """Every term of every device, with its source."""

    @property
    def total_bytes(self) -> int:
        """Everything that is taken, weights and buffers included."""
        return self.gpu_bytes + self.cpu_bytes


class KVCachePlanner:
    """A configuration of one model on one machine; after each change its layers are laid anew.

    `offload` says how: `none` keeps all layers on the GPUs, `partial` moves to main memory what
    does not fit (experts first), `full` moves all. Layers that were set by number, or found by
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
        self._offload: Offload | None = offload
        self._subscribers: list[Subscriber] = []
        self._draft: Path | None = None
        start = Configuration(
            model_path=NO_MODEL, n_ctx=DEFAULT_N_CTX, sampling=SamplingRules().settings()
        )
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
                "no model is set: name one of the catalogue, a GGUF file, or give a model that was "
                "read; without one there is nothing to count"
            )
        return self._planner.model(self.configuration.model_path)

    @property
    def configuration(self) -> Configuration:
        """The configuration of now."""
        return self._setup.configuration

    @property
    def offload(self) -> Offload | None:
        """How layers are laid; None where their number was set."""
        return self._offload

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
        path = self._planner.add(found)
        self._take(self._settled(replace(self.configuration, model_path=path), self._offload))

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
        changed = with_draft(self._setup, path).configuration
        self._take(self._settled(changed, self._offload))

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
        values, offload = _checked(settings)
        if offload is None and not set(LAYERS) & set(values):
            offload = self._offload
        changed = self._setup.changed(**values).configuration
        changed = with_n_ctx(changed, changed.n_ctx)  # a draft's context goes along
        if changed.model_path != NO_MODEL:
            changed = self._settled(changed, offload)
        self._offload = offload
        self._take(changed)
        return self.configuration

    def estimate(self, n_ctx: int | None = None, n_slots: int | None = None) -> CacheEstimate:
        """What the configuration costs, or would with another context or more slots.

        Raises:
            PresetError: no model is set, or llama.cpp would refuse the configuration.
        """
        asked = {"n_ctx": n_ctx, "n_slots": n_slots}
        plan = self._plan({name: value for name, value in asked.items() if value is not None})
        whole, now = plan.estimate, plan.setup.configuration
        kv_bytes = _sum(whole, TermKind.KV)
        step = PAD * (1 if now.kv_unified else now.n_slots)
        more = self._planner.estimator(plan.setup)(with_n_ctx(now, now.n_ctx + step))
        return CacheEstimate(
            kv_bytes=kv_bytes,
            state_bytes=_sum(whole, TermKind.STATE),
            bytes_per_token=(_sum(more, TermKind.KV) - kv_bytes) / (more.n_ctx - whole.n_ctx),
            gpu_bytes=sum(d.total_bytes for d in whole.devices if d.device.kind == "gpu"),
            cpu_bytes=sum(d.total_bytes for d in whole.devices if d.device.kind == "cpu"),
            fits=plan.fits,
            recommendation=recommendation(plan, self._planner),
            whole=whole,
        )

    def optimize_for_vram(
        self,
        *vram_bytes: int,
        goal: Goal = Goal.BALANCED,
        limits: Limits | None = None,
    ) -> SearchResult:
        """Take the best configuration for GPUs of these sizes (none: those of the planner).

        The weights are those of the model that is set; the found configuration is the planner's
        from then on, and subscribers get it.

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
        found = search_setup(setup, goal, planner, limits).found
        self._planner, self._offload = planner, None
        self._take(found.configuration)
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
        values, _ = _checked(changes)
        assert self.model
        changed = self._setup.changed(**values).configuration
        changed = with_n_ctx(changed, changed.n_ctx)
        settled = self._settled(changed, self._offload)
        return self._planner.plan(self._setup.with_configuration(settled))

    def _take(self, after: Configuration) -> None:
        before, self._setup = self.configuration, self._setup.with_configuration(after)
        names = dict.fromkeys((*SETTINGS, *(each.name for each in fields(Configuration))))
        changed = tuple(n for n in names if getattr(before, n) != getattr(after, n))
        if changed:
            for subscriber in tuple(self._subscribers):
                subscriber(ConfigurationChanged(before, after, changed))

    def _settled(self, configuration: Configuration, offload: Offload | None) -> Configuration:
        """The configuration with its layers laid as `offload` says.

        Raises:
            PresetError: llama.cpp would refuse the configuration.
        """
        setup = self._setup.with_configuration(configuration)
        cost = self._planner.estimator(setup)
        if offload is None:
            return cost(configuration).configuration
        model = self._planner.model(configuration.model_path)
        ladder = placements(model, self._planner.devices_of(setup), offload)
        found = fastest_fitting(configuration, ladder, cost, setup.margin_bytes)
        return found or laid(configuration, ladder[0] if len(ladder) == 1 else Placement(0))


def recommendation(plan: Plan, planner: Planner) -> str:
    """Whether a plan fits, and what would make it fit or its context larger, in a sentence."""
    if not plan.fits:
        effects = what_ifs(plan, planner, planner.facts_of(plan.setup))
        labels = [effect.label for effect in effects if effect.verdict is Verdict.FITS]
        *others, last = labels or [""]
        ways = f"{', '.join(others)} or {last}" if others else last
        remedy = f"It fits with {ways}" if labels else "Choose a smaller quantisation or model"
        return f"It does not fit: {' and '.join(plan.shortages)}. {remedy}."
    limit, n_ctx = n_ctx_limit(plan.model, plan.setup), plan.setup.configuration.n_ctx
    largest = plan.max_n_ctx or n_ctx
    if n_ctx > limit:
        return f"It fits, but the model was trained on {limit:,} tokens: scale RoPE, or lower n_ctx"
    if largest >= limit:
        return f"It fits, and so would all {limit:,} tokens that the model was trained on."
    if largest > n_ctx:
        return f"It fits; up to {largest:,} tokens of context would."
    return "It fits, and no more context would."


def _model(model: str | Path | Model, quantization: str) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, Path) or model.endswith(".gguf"):
        return read_model(Path(model))
    return find_entry(model).model(quantization)


def _sum(estimate: Estimate, kind: TermKind) -> int:
    return sum(device.term(kind).nbytes for device in estimate.devices)


# --- settings, checked by the rules of presets ---


def _checked(settings: Mapping[str, object]) -> tuple[dict[str, object], Offload | None]:
    """Settings as fields of a configuration, and how layers are laid; `all` is every layer.

    Raises:
        PresetError: a name is not known or a value impossible; every fault is named.
    """
    values = {name: value for name, value in settings.items() if name in SETTINGS}
    faults = [_unknown(name) for name in settings if name not in (*SETTINGS, "offload")]
    offload = settings.get("offload")
    if offload is not None and offload not in set(Offload):
        faults.append(f"offload is {str(offload)!r}: it is one of {', '.join(Offload)}")
    faults += [
        f"{name} is 'auto': name a type, or let optimize_for_vram choose"
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
    return (
        {name: -1 if value == "all" else value for name, value in found.items()},
        None if offload is None else Offload(str(offload)),
    )


def _unknown(name: str) -> str:
    known = [*SETTINGS, "offload"]
    near = nearest(name, known)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{name} is no setting: {hint}"
