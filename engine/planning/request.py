"""From what a user asked for to a setup: preset, model, options and machine joined.

Used by the commands, the presets screen and the planner.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.configuration import Configuration, DraftConfiguration, PredictorName
from engine.errors import ModelFileError, PresetError
from engine.memory.estimate import DoesNotFitError, with_n_ctx
from engine.memory.hardware import Device
from engine.memory.kv_cache import PAD
from engine.memory.terms import Target
from engine.memory.units import GIB
from engine.model.architecture import Model, architecture_of
from engine.model.library import UnknownNameError, find_model
from engine.model.remote import is_remote, read_remote
from engine.planning.cache_types import open_types
from engine.planning.machine import PlannedMachine
from engine.planning.planner import Planner, Setup
from engine.planning.resolve import FALLBACK_N_CTX, NO_PROJECTOR, resolve
from engine.planning.workers import with_workers
from engine.policy.known import Known
from engine.presets.library import preset_of
from engine.presets.preset import Preset, SamplingRules

Progress = Callable[[str, int], None]
"""Called with a remote file's name and the number of header bytes received."""
PLACED = frozenset(("n_gpu_layers", "n_cpu_moe"))
"""Fields of a configuration that place the layers."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Options of the command line or the presets screen; the preset has the others."""

    model: str | None = None
    target: Target = "kvchat"
    draft: str | None = None
    machine: PlannedMachine = field(default_factory=PlannedMachine)
    margin_bytes: int | None = None
    rules: Mapping[str, object] = field(default_factory=dict)
    """Values that override the preset, by its keys."""
    must_fit: bool = False
    """Whether a model that does not fit is an error; otherwise it is planned with 512 tokens."""


def setup_of(
    request: PlanRequest,
    planner: Planner,
    preset: Preset | None = None,
    *,
    progress: Progress | None = None,
) -> Setup:
    """Resolve a request to a setup; if nothing fits, with a small context.

    The preset has the options that the request lacks (None: the defaults). Raises `PresetError` if
    no model is named or llama.cpp refuses the combination, `ModelFileError` if one cannot be read.
    """
    rules = _with_rules(preset or Preset(name="default"), request)
    model_path = take_model(_model_name(rules, request, preset), planner, progress)
    draft_name = request.draft or (rules.draft.model if rules.draft else None)
    draft_path = None if draft_name is None else take_model(draft_name, planner, progress)
    target: Target = "llama-server" if request.machine.workers else request.target
    machine = planner.machine_of(request.machine, rules.vram_gib, target)
    model, devices = planner.model(model_path), planner.devices(machine, target)
    draft = None if draft_path is None else planner.model(draft_path)
    is_open = open_types(rules) is not None or rules.goal is not None
    known = planner.known(model_path, machine) if is_open else None
    find = resolve if request.must_fit else _resolved
    configuration = find(rules, model, devices, target=target, draft=draft, known=known)
    if machine.workers:
        configuration = with_workers(configuration, model, devices)
    return Setup(configuration, target, machine, round(rules.margin_gib * GIB))


def suit_to_machine(
    setup: Setup, planner: Planner, *, fixed: frozenset[str] = frozenset()
) -> Setup:
    """Choose context and layers for the setup's machine, as `kvchat plan` does.

    `fixed` names fields of `n_ctx`, `n_gpu_layers` and `n_cpu_moe` to leave alone; other options
    stay too.
    """
    now = setup.configuration
    rules = preset_of(now, "default").model_copy(
        update={
            "n_ctx": now.n_ctx if "n_ctx" in fixed else "auto",
            "n_gpu_layers": "auto",
            "n_cpu_moe": 0,
            "mmproj": NO_PROJECTOR if now.mmproj_path is None else str(now.mmproj_path),
            "margin_gib": setup.margin_bytes / GIB,
        }
    )
    model, devices = planner.model(now.model_path), planner.devices_of(setup)
    draft = None if now.draft is None else planner.model(now.draft.model_path)
    found = _resolved(rules, model, devices, target=setup.target, draft=draft)
    if not fixed & PLACED:
        now = replace(now, n_gpu_layers=found.n_gpu_layers, n_cpu_moe=found.n_cpu_moe)
    return setup.with_configuration(with_n_ctx(now, found.n_ctx))


def _resolved(
    rules: Preset,
    model: Model,
    devices: tuple[Device, ...],
    *,
    target: Target,
    draft: Model | None,
    known: Known | None = None,
) -> Configuration:
    """Resolve rules; if nothing fits, with a small context."""
    try:
        return resolve(rules, model, devices, target=target, draft=draft, known=known)
    except DoesNotFitError:
        least = rules.model_copy(update={"n_ctx": FALLBACK_N_CTX})
        return resolve(least, model, devices, target=target, draft=draft, known=known)


def _model_name(rules: Preset, request: PlanRequest, preset: Preset | None) -> str:
    name = request.model or rules.model
    if request.model is None and rules.server is not None:
        raise PresetError(
            f"the preset {rules.name!r} uses the model on the server {rules.server}: "
            "specify a model file to plan with the preset's other settings"
        )
    if name is None:
        names_none = "" if preset is None else f"the preset {preset.name!r} has no model: "
        raise PresetError(
            f"{names_none}specify the path of a model, or a name from `kvchat models`"
        )
    return name


def _with_rules(preset: Preset, request: PlanRequest) -> Preset:
    """Apply the request's options to a preset.

    A smaller batch lowers the ubatch of the preset. A draft model is used beside the text of the
    chat, unless the preset names a predictor.
    """
    changed = dict(request.rules)
    n_batch = changed.get("n_batch")
    is_named = "n_ubatch" in preset.model_fields_set and "n_ubatch" not in changed
    if is_named and isinstance(n_batch, int) and n_batch < preset.n_ubatch:
        changed["n_ubatch"] = n_batch
    if request.margin_bytes is not None:
        changed["margin_gib"] = request.margin_bytes / GIB
    has_draft = request.draft is not None or preset.draft is not None
    if has_draft and "speculation" not in preset.model_fields_set:
        changed["speculation"] = replace(preset.speculation, predictor=PredictorName.COMBINED)
    return preset.model_copy(update=changed)


def take_model(name: str, planner: Planner, progress: Progress | None = None) -> Path:
    """Find a model by name and add it to the planner; returns its path there.

    A path and a name of the library come first, then the catalogue, whose names may have a
    quantisation after a colon; a URL or an `hf:` name means that file. A model that is not on this
    machine gets a bare file name as path and an `origin`. Raises `ModelFileError`.
    """
    if is_remote(name):
        folder = planner.sources.headers_dir
        file = read_remote(name, cache_folder=folder, progress=progress or (lambda *_: None))
        return planner.add(Model(file, architecture_of(file)))
    try:
        return find_model(name, planner.sources.folders())
    except UnknownNameError as unknown:
        if planner.has(Path(name)):
            return Path(name)
        return planner.add(_of_catalog(name, unknown))


def usual_configuration(
    model: str, draft: str | None, planner: Planner, progress: Progress | None = None
) -> Configuration:
    """The start of a search: a model, and optionally a draft model."""
    path = take_model(model, planner, progress)
    drafts = None if draft is None else take_model(draft, planner, progress)
    return Configuration(
        path,
        n_ctx=PAD,
        draft=None if drafts is None else DraftConfiguration(drafts, PAD),
        sampling=SamplingRules().settings(),
    )


def _of_catalog(name: str, unknown: UnknownNameError) -> Model:
    from engine.model.catalog import DEFAULT_QUANTIZATION, find_entry

    entry_name, quantization = name, DEFAULT_QUANTIZATION
    try:
        try:
            entry = find_entry(name)  # names of Ollama hold a colon themselves
        except ModelFileError:
            entry_name, _, suffix = name.rpartition(":")
            quantization = suffix.upper() if entry_name else DEFAULT_QUANTIZATION
            entry = find_entry(entry_name or name)
    except ModelFileError as error:
        raise UnknownNameError(f"{unknown} And {error}") from error
    model = entry.model(quantization)
    origin, path = f"kvchat's catalogue ({entry.source}; {entry.checked})", model.file.path
    asked = entry_name or name
    if asked.lower() != entry.name.lower():  # an alias, of a model with the same shape
        origin = f"{origin}, under the name {entry.name}"
        path = Path(f"{re.sub(r'[/:]', '-', asked)}{path.name.removeprefix(entry.name)}")
    return replace(model, file=replace(model.file, origin=origin, path=path))
