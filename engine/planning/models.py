"""Models to choose from, each with its verdict on the machine that is planned for."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.model.architecture import Model, read_model
from engine.model.catalog import CatalogEntry, entries
from engine.model.library import ModelEntry
from engine.planning.planner import Planner, Setup, Verdict, device_verdict, verdict_of
from engine.planning.resolve import AUTO_N_CTX

CATALOG_QUANTIZATIONS = ("Q2_K", "Q3_K_M", "IQ4_XS", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16")


@dataclass(frozen=True, slots=True)
class ModelOption:
    """One model of a list."""

    key: str
    """What opens it: a path, or a name of the catalogue with its quantisation."""
    name: str
    facts: tuple[str, ...]
    verdict: Verdict | None = None
    needed_bytes: int = 0
    """Memory that it takes where that is scarcest, all layers on the GPUs."""
    free_bytes: int = 0
    spills: bool = False
    """Whether it goes with main memory though not into the GPUs alone."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FitContext:
    """What a model is to fit beside and into: the setup of now and its devices."""

    setup: Setup
    devices: tuple[Device, ...]


def fit_context(setup: Setup | None, planner: Planner) -> FitContext:
    """What models are to fit: a setup; without one, the usual context on this machine."""
    setup = setup or Setup(Configuration(Path("any"), AUTO_N_CTX))
    return FitContext(setup, planner.devices_of(setup))


def library_options(
    models: Sequence[ModelEntry], facts: Sequence[tuple[str, ...]], context: FitContext
) -> Iterator[ModelOption]:
    """The models of this machine one by one; their headers are read."""
    for entry, shown in zip(models, facts, strict=True):
        option = ModelOption(str(entry.path), entry.name, shown, problem=entry.problem or "")
        if option.problem:
            yield option
            continue
        try:
            yield with_verdict(option, read_model(entry.path), context)
        except EngineError as error:
            yield replace(option, problem=str(error))


def catalog_options(
    quantization: str, context: FitContext, facts: Callable[[Model], tuple[str, ...]]
) -> Iterator[ModelOption]:
    """The models of the catalogue one by one, as if they had been quantised so.

    What cannot be had in that quantisation says so. `facts` says what a row tells of a model.
    """
    for entry in sorted(entries(), key=_by_name):
        key = f"{entry.name}:{quantization}"
        option = ModelOption(key, entry.name, (quantization,))
        try:
            model = entry.model(quantization)
            option = with_verdict(replace(option, facts=facts(model)), model, context)
        except EngineError as error:
            option = replace(option, problem=str(error))
        yield option


def _by_name(entry: CatalogEntry) -> list[tuple[int, float, str]]:
    """The words and numbers of a name, to sort by: 4b comes before 12b."""
    parts = re.findall(r"\d+(?:\.\d+)?|[^\d]+", entry.name.lower())
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]


def with_verdict(option: ModelOption, model: Model, context: FitContext) -> ModelOption:
    """An option with its verdict: the knobs of now, every layer on the GPUs.

    Raises:
        PresetError: llama.cpp refuses the model with those knobs.
    """
    found = _cost(model, context, n_gpu_layers=-1)
    margin = context.setup.margin_bytes
    verdict = verdict_of(found, margin)
    used = [device for device in found.devices if device.total_bytes]
    scarce = min(used, key=lambda device: device.left_bytes)
    spills = verdict is Verdict.NO and _spills(model, context, found)
    return replace(
        option,
        verdict=verdict,
        needed_bytes=scarce.total_bytes,
        free_bytes=scarce.device.free_bytes,
        spills=spills,
    )


def _spills(model: Model, context: FitContext, whole: Estimate) -> bool:
    """Whether the GPUs are short and main memory is not."""
    margin = context.setup.margin_bytes
    if all(device.device.kind == "cpu" for device in whole.devices):
        return False
    main = _cost(model, context, n_gpu_layers=0)
    return all(
        device_verdict(device, margin) is Verdict.FITS
        for device in main.devices
        if device.device.kind == "cpu"
    )


def _cost(model: Model, context: FitContext, *, n_gpu_layers: int) -> Estimate:
    now = context.setup.configuration
    configuration = replace(
        now,
        model_path=model.file.path,
        n_ctx=min(now.n_ctx, model.architecture.n_ctx_train or now.n_ctx),
        n_gpu_layers=n_gpu_layers,
        n_cpu_moe=0,
        tensor_overrides=(),
        draft=None,
        mmproj_path=None,
        adapters=(),
    )
    return estimate(model, configuration, context.devices, target=context.setup.target)
