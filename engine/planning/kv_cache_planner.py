"""One model, one machine, one configuration to change and to ask: the planner as an object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from pydantic import ValidationError

from engine.configuration import (
    DRAFT_N_CTX,
    Configuration,
    DraftConfiguration,
    FlashAttention,
    KVTypeName,
    PredictorName,
)
from engine.errors import PresetError
from engine.memory.estimate import Estimate
from engine.memory.fit import Estimator, estimator, max_n_ctx, with_n_ctx
from engine.memory.hardware import Device, devices
from engine.memory.kv_cache import PAD
from engine.memory.terms import Target, TermKind
from engine.memory.units import MIB, format_bytes
from engine.model.architecture import Model, read_model
from engine.model.catalog import DEFAULT_QUANTIZATION, find_entry
from engine.model.vocabulary import check_headers
from engine.planning.goals import Goal, Limits, Offload
from engine.planning.placements import placements
from engine.planning.search import SearchResult, search
from engine.presets.preset import Preset, SamplingRules
from engine.presets.programs import lm_studio
from engine.presets.programs.base import ExportRequest
from engine.presets.programs.llama_server import arguments
from engine.validation import nearest

DEFAULT_N_CTX = 4096
DEFAULT_MARGIN_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class ConfigurationChanged:
    """What subscribers are told."""

    before: Configuration
    after: Configuration
    changed: tuple[str, ...]
    """Names of the fields that differ."""


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


Subscriber = Callable[[ConfigurationChanged], None]


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
        self._devices = devices() if of_devices is None else of_devices
        self._target: Target = target
        self._margin_bytes = margin_bytes
        self._offload: Offload | None = offload
        self._subscribers: list[Subscriber] = []
        self._model: Model | None = None
        self._draft: Model | None = None
        self._configuration = Configuration(
            Path(), n_ctx=DEFAULT_N_CTX, sampling=SamplingRules().settings()
        )
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
        if self._model is None:
            raise PresetError(
                "no model is set: name one of the catalogue, a GGUF file, or give a model that was "
                "read; without one there is nothing to count"
            )
        return self._model

    @property
    def configuration(self) -> Configuration:
        """The configuration as it stands."""
        return self._configuration

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
            check_headers(found.file, self._draft.file)
        moved = replace(self._configuration, model_path=found.file.path)
        settled = self._settled(found, moved, self._offload)
        self._model = found
        self._take(settled)

    def set_draft(
        self, model: str | Path | Model | None, quantization: str = DEFAULT_QUANTIZATION
    ) -> None:
        """Let a small model draft, all of it on the GPUs; None ends that.

        Raises:
            ModelFileError: the name is not known, or no such file.
            IncompatiblePairError: its header shows another vocabulary.
        """
        now = self._configuration
        if model is None:
            self._draft = None
            plain = replace(now.speculation, predictor=PredictorName.SUFFIX)
            changed = replace(now, draft=None, speculation=plain)
        else:
            draft = _model(model, quantization)
            check_headers(self.model.file, draft.file)
            self._draft = draft
            drafting = replace(now.speculation, predictor=PredictorName.DRAFT)
            own = DraftConfiguration(draft.file.path, min(now.n_ctx, DRAFT_N_CTX))
            changed = replace(now, draft=own, speculation=drafting)
        self._take(self._settled(self.model, changed, self._offload))

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Tell a function of each change from now on; gives what ends that."""
        self._subscribers.append(subscriber)
        return lambda: self.unsubscribe(subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        """Tell a function no more; one that is not told anyway is no error."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def update_config(self, **settings: object) -> Configuration:
        """Change settings by the names of `Configuration`, or `offload`; all or none are taken.

        Raises:
            PresetError: a name is not known or a value impossible; each is named.
        """
        changes = checked_changes(settings)
        offload = None if changes.sets_layers else self._offload
        offload = changes.offload or offload
        changed = replace(self._configuration, **changes.values)
        changed = with_n_ctx(changed, changed.n_ctx)  # a draft's context goes along
        if self._model is not None:
            changed = self._settled(self._model, changed, offload)
        self._offload = offload
        self._take(changed)
        return self._configuration

    def estimate(self, n_ctx: int | None = None, n_slots: int | None = None) -> CacheEstimate:
        """Say what the configuration costs, or what it would with another context or more slots.

        Raises:
            PresetError: no model is set, or llama.cpp would refuse the configuration.
        """
        asked = checked_changes(
            {
                name: value
                for name, value in (("n_ctx", n_ctx), ("n_slots", n_slots))
                if value is not None
            }
        )
        wanted = replace(self._configuration, **asked.values)
        wanted = with_n_ctx(wanted, wanted.n_ctx)
        configuration = self._settled(self.model, wanted, self._offload)
        whole = self._cost(configuration)
        kv_bytes = _sum(whole, TermKind.KV)
        more = self._cost(with_n_ctx(configuration, configuration.n_ctx + PAD * _streams(whole)))
        n_more = more.n_ctx - whole.n_ctx
        return CacheEstimate(
            kv_bytes=kv_bytes,
            state_bytes=_sum(whole, TermKind.STATE),
            bytes_per_token=(_sum(more, TermKind.KV) - kv_bytes) / n_more,
            gpu_bytes=sum(d.total_bytes for d in whole.devices if d.device.kind == "gpu"),
            cpu_bytes=sum(d.total_bytes for d in whole.devices if d.device.kind == "cpu"),
            fits=whole.fits(self._margin_bytes),
            recommendation=recommendation(self.model, whole, self._margin_bytes, self._cost),
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
        from then on, and subscribers are told.

        Raises:
            DoesNotFitError: nothing that the limits allow fits; the configuration stays.
            HardwareError: a size is zero or negative.
        """
        if vram_bytes:
            cpu = next(device for device in self._devices if device.kind == "cpu")
            gpus = devices(vram_bytes=vram_bytes, ram_bytes=cpu.total_bytes)[:-1]
            of_devices = (*gpus, cpu)
        else:
            of_devices = self._devices
        found = search(
            self.model,
            of_devices,
            goal,
            target=self._target,
            margin_bytes=self._margin_bytes,
            draft=self._draft,
            base=self._configuration,
            limits=limits,
        )
        self._devices, self._offload = of_devices, None
        self._take(found.configuration)
        return found

    def format_config(self) -> str:
        """Give the configuration and its cost as a few lines of text."""
        return format_config(self.model, self._configuration, self._offload, self.estimate())

    def llama_cpp_arguments(self) -> list[str]:
        """Give the arguments of llama-server, each value beside its name."""
        return arguments(self._configuration)

    def lm_studio_json(self) -> str:
        """Give LM Studio's defaults of the model, in the format that it reads."""
        request = ExportRequest(
            self._configuration,
            self.model,
            uses_gpu=any(device.kind == "gpu" for device in self._devices),
            margin_bytes=self._margin_bytes,
        )
        return lm_studio.render(request).text

    def _cost(self, configuration: Configuration) -> Estimate:
        return self._estimator(self.model)(configuration)

    def _estimator(self, model: Model) -> Estimator:
        return estimator(model, self._devices, target=self._target, draft=self._draft)

    def _take(self, after: Configuration) -> None:
        before, self._configuration = self._configuration, after
        changed = tuple(
            name
            for name in Configuration.__dataclass_fields__
            if getattr(before, name) != getattr(after, name)
        )
        if changed:
            for subscriber in tuple(self._subscribers):
                subscriber(ConfigurationChanged(before, after, changed))

    def _settled(
        self, model: Model, configuration: Configuration, offload: Offload | None
    ) -> Configuration:
        """Lay the layers as `offload` says.

        Raises:
            PresetError: llama.cpp would refuse the configuration.
        """
        cost = self._estimator(model)
        if offload is None:
            return cost(configuration).configuration
        ladder = placements(model, self._devices, offload)
        for placement in ladder:
            laid = replace(
                configuration,
                n_gpu_layers=placement.n_gpu_layers,
                n_cpu_moe=placement.n_cpu_moe,
            )
            if cost(laid).fits(self._margin_bytes) or len(ladder) == 1:
                return laid
        return replace(configuration, n_gpu_layers=0, n_cpu_moe=0)


def _model(model: str | Path | Model, quantization: str) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, Path) or model.endswith(".gguf"):
        return read_model(Path(model))
    return find_entry(model).model(quantization)


def _sum(estimate: Estimate, kind: TermKind) -> int:
    return sum(device.term(kind).nbytes for device in estimate.devices)


def _streams(estimate: Estimate) -> int:
    now = estimate.configuration
    return 1 if now.kv_unified else now.n_slots


COARSER: tuple[KVTypeName, ...] = ("q8_0", "q4_0")
Cost = Callable[[Configuration], Estimate]


def recommendation(model: Model, estimate: Estimate, margin_bytes: int, cost: Cost) -> str:
    """Say whether a configuration fits, and what would make it or the context larger.

    Args:
        model: What is planned for.
        estimate: Its cost.
        margin_bytes: Memory to keep free on every device.
        cost: The cost of other configurations of the same model and machine.
    """
    if estimate.fits(margin_bytes):
        return _while_it_fits(model, estimate, margin_bytes, cost)
    short = [d for d in estimate.devices if d.total_bytes and d.left_bytes < margin_bytes]
    where = " and ".join(
        f"{d.device.name} lacks {format_bytes(margin_bytes - d.left_bytes)}" for d in short
    )
    return f"It does not fit: {where}. {_remedy(estimate, margin_bytes, cost)}"


def _while_it_fits(model: Model, estimate: Estimate, margin_bytes: int, cost: Cost) -> str:
    now = estimate.configuration
    limit = model.architecture.n_ctx_train * now.n_slots
    if now.n_ctx > limit:
        return f"It fits, but the model was trained on {limit:,} tokens: scale RoPE, or lower n_ctx"
    largest = max_n_ctx(now, cost, n_ctx_limit=limit, margin_bytes=margin_bytes) or now.n_ctx
    if largest >= limit:
        return f"It fits, and so would all {limit:,} tokens that the model was trained on."
    if largest > now.n_ctx:
        return f"It fits; up to {largest:,} tokens of context would."
    return "It fits, and no more context would."


def _remedy(estimate: Estimate, margin_bytes: int, cost: Cost) -> str:
    now = estimate.configuration
    if now.type_k not in COARSER or now.type_v not in COARSER:
        for name in COARSER:
            coarser = replace(now, type_k=name, type_v=name, flash_attention="on")
            if _fits(coarser, margin_bytes, cost):
                return f"A cache of {name} for keys and values fits."
    largest = max_n_ctx(now, cost, n_ctx_limit=now.n_ctx, margin_bytes=margin_bytes)
    if largest is not None:
        return f"A context of {largest:,} tokens fits."
    if now.n_gpu_layers != 0 and _fits(replace(now, n_gpu_layers=0), margin_bytes, cost):
        return "With layers in main memory (offload partial or full) it fits."
    return "Choose a smaller quantisation or a smaller model."


def _fits(configuration: Configuration, margin_bytes: int, cost: Cost) -> bool:
    try:
        return cost(configuration).fits(margin_bytes)
    except PresetError:
        return False  # llama.cpp would refuse it: no remedy


class Values(TypedDict, total=False):
    """The fields of `Configuration` that a planner changes."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    type_k: KVTypeName
    type_v: KVTypeName
    flash_attention: FlashAttention
    n_slots: int
    kv_unified: bool
    swa_full: bool
    offload_kqv: bool
    n_gpu_layers: int
    n_cpu_moe: int
    n_threads: int | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What shall change."""

    values: Values = field(default_factory=Values)
    offload: Offload | None = None

    @property
    def sets_layers(self) -> bool:
        """Whether layers are set by their number."""
        return bool({"n_gpu_layers", "n_cpu_moe"} & set(self.values))


def checked_changes(settings: Mapping[str, object]) -> Changes:
    """Give settings as fields of a configuration; `all` stands for every layer.

    Raises:
        PresetError: a name is not known or a value impossible; every fault is named.
    """
    faults = [fault for name in settings if (fault := _unknown(name)) is not None]
    offload = _offload(settings, faults)
    plain = {name: value for name, value in settings.items() if name in Values.__annotations__}
    rules = _validated(plain, faults)
    if faults or rules is None:
        raise PresetError("; ".join(faults))
    values = Values()
    for name in plain:
        value = getattr(rules, name)
        values[name] = -1 if value == "all" else value  # type: ignore[literal-required]  # a key
    return Changes(values, offload)


def _unknown(name: str) -> str | None:
    known = [*Values.__annotations__, "offload"]
    if name in known:
        return None
    near = nearest(name, known)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
    return f"{name} is no setting: {hint}"


def _offload(settings: Mapping[str, object], faults: list[str]) -> Offload | None:
    if "offload" not in settings:
        return None
    name = str(settings["offload"])
    if name not in set(Offload):
        faults.append(f"offload is {name!r}: it is one of {', '.join(Offload)}")
        return None
    return Offload(name)


def _validated(values: Mapping[str, object], faults: list[str]) -> Preset | None:
    layers = {"n_gpu_layers", "n_cpu_moe"}
    plain = {k: "all" if k in layers and v == -1 else v for k, v in values.items()}
    try:
        return Preset.model_validate({"name": "planner", **plain})
    except ValidationError as error:
        faults += (
            f"{item['loc'][0]} is {item['input']!r}: {item['msg'][:1].lower()}{item['msg'][1:]}"
            for item in error.errors(include_url=False)
        )
        return None


def format_config(
    model: Model, now: Configuration, offload: Offload | None, cost: CacheEstimate
) -> str:
    """Give a configuration and its cost as a few lines of text."""
    k, v = now.type_k, now.type_v
    slots = f" in {now.n_slots} slots" if now.n_slots > 1 else ""
    lines = [
        f"model     {model.file.name}",
        f"context   {now.n_ctx:,} tokens{slots}",
        f"cache     {k if k == v else f'K {k}, V {v}'}: {format_bytes(cost.kv_bytes)}",
        f"offload   {offload or 'by number'}: {_layers(now, model)}",
        f"GPU       {format_bytes(cost.gpu_bytes)}",
        f"memory    {format_bytes(cost.cpu_bytes)}",
        cost.recommendation,
    ]
    return "\n".join(lines)


def _layers(configuration: Configuration, model: Model) -> str:
    n_layers = model.architecture.n_layers
    if configuration.n_gpu_layers < 0:
        n_moe = configuration.n_cpu_moe
        experts = "all" if n_moe < 0 else f"the first {n_moe}"
        return f"all {n_layers} layers on the GPU" + (
            f", experts of {experts} in main memory" if n_moe else ""
        )
    return f"{min(configuration.n_gpu_layers, n_layers)} of {n_layers} layers on the GPU"
