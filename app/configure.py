"""What was chosen, made into the configuration that the engine loads: for screen and `run`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from app import locations
from app.settings import Settings
from engine.configuration import Configuration, PredictorName
from engine.errors import ModelFileError
from engine.model.library import find_model, scan
from engine.model.starter import STARTER
from engine.presets.preset import Preset


def usual_model(settings: Settings, folders: Sequence[Path], last: str | None) -> Path | None:
    """The model of the settings, else the one used last, else the starter, else any, else none."""
    if settings.models.default:
        return find_model(settings.models.default, folders)
    if last is not None and Path(last).is_file():
        return Path(last)
    starter = locations.models_dir() / STARTER.file_name
    if starter.is_file():
        return starter
    try:
        return find_model("starter", folders)
    except ModelFileError:
        usable = (entry for entry in scan(folders, cache_path=locations.header_cache_path()))
        return next((entry.path for entry in usable if entry.problem is None), None)


def draft_path(named: str | None, rules: Preset | None, folders: Sequence[Path]) -> Path | None:
    """The draft model that was named, else the preset's, else none."""
    name = named or (rules.draft.model if rules and rules.draft else None)
    return find_model(name, folders) if name else None


def configure(
    path: Path, draft: Path | None, rules: Preset | None, settings: Settings
) -> Configuration:
    """The configuration that a model is opened with.

    Args:
        path: The model.
        draft: A draft model that was named; it drafts unless a preset says otherwise.
        rules: A preset; without one the settings say who drafts and how tokens are drawn.
        settings: The user's settings.

    Raises:
        EngineError: If the model or the preset cannot be read, or they do not go together.
    """
    from engine.memory.hardware import devices, usable_devices
    from engine.memory.units import GIB
    from engine.model.architecture import read_model
    from engine.presets.resolve import Machine, resolve
    from engine.speculation.heads import check_is_no_head

    if draft is not None:
        check_is_no_head(draft)
    draft_model = read_model(draft) if draft else None
    found = usable_devices()
    if rules is not None and rules.vram_gib and any(device.kind == "gpu" for device in found):
        found = devices(vram_bytes=(round(rules.vram_gib * GIB),))
    chosen = rules or _usual_rules(settings)
    configuration = resolve(chosen, read_model(path), Machine(found), draft=draft_model)
    if rules is None:
        speculation = settings.speculation.speculation()
        if draft is not None:
            speculation = replace(speculation, predictor=PredictorName.COMBINED)
        configuration = replace(
            configuration, speculation=speculation, sampling=settings.chat.sampling()
        )
    return replace(
        configuration,
        n_threads=configuration.n_threads or settings.engine.n_threads,
        use_extra_buffers=settings.engine.use_extra_buffers,
    )


def _usual_rules(settings: Settings) -> Preset:
    """The rules without a preset: the settings say how many lines the context holds."""
    cache = settings.cache
    return Preset(
        name="default",
        n_slots=cache.slots,
        kv_unified=cache.slots > 1 and cache.cells == "shared",
    )


def planned_bytes(configuration: Configuration) -> int:
    """What the estimate says that llama.cpp allocates on all devices together.

    Raises:
        EngineError: If a model file cannot be read.
    """
    from engine.memory.estimate import TermKind, estimate
    from engine.memory.hardware import usable_devices
    from engine.model.architecture import read_model

    draft = read_model(configuration.draft.model_path) if configuration.draft else None
    planned = estimate(
        read_model(configuration.model_path), configuration, usable_devices(), draft=draft
    )
    # The overhead of the process is outside of llama.cpp's buffers, which this is compared with.
    return sum(
        term.nbytes
        for device in planned.devices
        for kind, term in device.terms.items()
        if kind is not TermKind.OVERHEAD
    )
