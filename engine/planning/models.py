"""Models to choose from, each with its verdict on the machine that is planned for."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from engine.configuration import Configuration
from engine.errors import EngineError
from engine.memory.bandwidth import TYPICAL
from engine.memory.estimate import Estimate, estimator, max_n_ctx
from engine.memory.hardware import Device
from engine.memory.units import format_bytes
from engine.model.architecture import Model, read_model
from engine.model.catalog import DEFAULT_QUANTIZATION, entries, find_entry
from engine.model.hub import HubModel
from engine.model.library import ModelEntry
from engine.model.speeds import ModelSpeed
from engine.parsing import natural_key
from engine.planning.offload import Offload, fastest_fitting, offload_levels
from engine.planning.planner import Planner, Setup, n_ctx_limit
from engine.planning.resolve import AUTO_N_CTX
from engine.planning.speed import BandwidthOf, SpeedBound, speed_bound
from engine.planning.verdict import FitVerdict, fullest_device, verdict_of

MIN_TPS = 5.0
"""Tokens per second below which a reply is slower than a person reads."""
CATALOG_QUANTIZATIONS = ("Q2_K", "Q3_K_M", "IQ4_XS", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0", "F16")


@dataclass(frozen=True, slots=True)
class ModelOption:
    """One model of a list."""

    key: str
    """The name to open it by: a path, or a catalogue name with its quantisation."""
    name: str
    facts: tuple[str, ...]
    verdict: FitVerdict | None = None
    needed_bytes: int = 0
    """Memory needed on the fullest device, with all layers on the GPUs."""
    free_bytes: int = 0
    spills: bool = False
    """Whether the model fits with layers in RAM, but not on the GPUs alone."""
    speed: ModelSpeed | None = None
    """The model's speed as measured on this machine."""
    bound: SpeedBound | None = None
    """Upper bound of tokens per second by memory bandwidth; None if that is unknown."""
    n_ctx: int | None = None
    """Tokens of the context that the verdict is for."""
    n_parameters: int = 0
    max_n_ctx: int | None = None
    """The largest context that fits; None if not requested."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FitContext:
    """The current setup and its devices, which a model of a list must fit."""

    setup: Setup
    devices: tuple[Device, ...]
    bandwidth_of: BandwidthOf = lambda _: None


def fit_context(setup: Setup | None, planner: Planner) -> FitContext:
    """The requirements for listed models: a setup, or the default context on this machine."""
    setup = setup or Setup(Configuration(Path("any"), AUTO_N_CTX))
    return FitContext(setup, planner.devices_of(setup), planner.bandwidths(setup.machine))


def library_options(
    models: Sequence[ModelEntry], facts: Sequence[tuple[str, ...]], context: FitContext
) -> Iterator[ModelOption]:
    """Read the headers of this machine's models and yield each with its verdict."""
    for entry, shown in zip(models, facts, strict=True):
        is_here = context.setup.machine.is_here
        speed, problem = entry.speed if is_here else None, entry.problem or ""
        option = ModelOption(str(entry.path), entry.name, shown, speed=speed, problem=problem)
        try:
            if not problem:
                option = with_verdict(option, read_model(entry.path), context)
        except EngineError as error:
            option = replace(option, problem=str(error))
        yield option


def catalog_names(quantization: str) -> list[ModelOption]:
    """The catalogue's models in one quantisation, without verdicts."""
    return [
        ModelOption(
            f"{entry.name}:{quantization}",
            entry.name,
            (quantization, *((f"also {', '.join(entry.aliases)}",) if entry.aliases else ())),
        )
        for entry in sorted(entries(), key=lambda entry: natural_key(entry.name))
    ]


def catalog_options(
    quantization: str, context: FitContext, facts: Callable[[Model], tuple[str, ...]]
) -> Iterator[ModelOption]:
    """Yield the catalogue's models in one quantisation; `facts` gives the cells of a row.

    A model without that quantisation has a `problem`.
    """
    for option in catalog_names(quantization):
        try:
            model = find_entry(option.name).model(quantization)
            shown = replace(option, facts=(*facts(model), *option.facts[1:]))
            yield with_verdict(shown, model, context)
        except EngineError as error:
            yield replace(option, problem=str(error))


def hub_options(
    models: Sequence[HubModel], read: Model, context: FitContext
) -> Iterator[ModelOption]:
    """Yield the files of a repository with verdicts, from one header and their sizes.

    The files are one model in several quantisations, so only the size of the weights differs. The
    verdict of the file whose header was read is exact.
    """
    setup = context.setup
    for each in models:
        model = with_weights_of(read, each.nbytes)
        option = ModelOption(each.address, each.name, (format_bytes(each.nbytes),))
        try:
            option = with_verdict(option, model, context)
            largest = max_n_ctx(
                _alone(model, setup),
                estimator(model, context.devices, target=setup.target),
                n_ctx_limit=n_ctx_limit(model, setup),
                margin_bytes=setup.margin_bytes,
            )
            yield replace(option, max_n_ctx=largest)
        except EngineError as error:
            yield replace(option, problem=str(error))


def with_weights_of(model: Model, nbytes: int) -> Model:
    """The model with its weights scaled to a file of `nbytes`."""
    file = model.file
    held = sum(tensor.nbytes for tensor in file.tensors)
    factor = max(nbytes - (file.nbytes - held), 1) / max(held, 1)
    if factor == 1:
        return model
    tensors = tuple(
        replace(tensor, nbytes=max(round(tensor.nbytes * factor), 1)) for tensor in file.tensors
    )
    return replace(model, file=replace(file, tensors=tensors, nbytes=nbytes))


def choose(models: Sequence[HubModel], options: Sequence[ModelOption]) -> HubModel | None:
    """The default model of a list: the usual quantisation, else the largest that fits."""
    fitting = [
        model
        for model, option in zip(models, options, strict=True)
        if option.verdict in (FitVerdict.FITS, FitVerdict.TIGHT) or option.spills
    ]
    usual = [model for model in fitting if DEFAULT_QUANTIZATION.lower() in model.name.lower()]
    return next(iter(usual or fitting[::-1]), None)


def rank_options(options: Iterable[ModelOption]) -> list[ModelOption]:
    """Sort: fits and fast, fits but slow, tight, fits with layers in RAM, no; the largest first."""
    return sorted(options, key=_rank)


def _rank(option: ModelOption) -> tuple[int, int]:
    n_parameters = option.n_parameters
    match option.verdict:
        case FitVerdict.FITS:
            tps, bound = MIN_TPS, option.bound
            if bound is not None:
                tps = bound.tps or TYPICAL.bytes_per_s / bound.weight_bytes
            return (0 if tps >= MIN_TPS else 1, -n_parameters)
        case FitVerdict.TIGHT:
            return 2, -n_parameters
        case FitVerdict.NO:
            return (3, -n_parameters) if option.spills else (4, n_parameters)
        case None:
            return 5, 0


def with_verdict(option: ModelOption, model: Model, context: FitContext) -> ModelOption:
    """The verdict of a model with the current options and all layers on the GPUs."""
    margin, devices = context.setup.margin_bytes, context.devices
    cost = estimator(model, devices, target=context.setup.target)
    now = _alone(model, context.setup)
    found = cost(now)
    verdict = verdict_of(found, margin)
    scarce = fullest_device(found, margin)
    placed: Estimate | None = found
    if verdict is FitVerdict.NO:  # as a plan places it
        levels = offload_levels(model, devices, Offload.PARTIAL)
        mixed = fastest_fitting(now, levels, cost, margin) if len(levels) > 1 else None
        placed = None if mixed is None else cost(mixed)
    bound = speed_bound(model, placed, context.bandwidth_of, option.speed) if placed else None
    return replace(
        option,
        verdict=verdict,
        needed_bytes=scarce.total_bytes,
        free_bytes=scarce.device.free_bytes,
        spills=verdict is FitVerdict.NO and placed is not None,
        bound=bound,
        n_ctx=found.configuration.n_ctx,
        n_parameters=sum(prod(tensor.shape) for tensor in model.file.tensors),
    )


def _alone(model: Model, setup: Setup) -> Configuration:
    """The setup's configuration with this model alone, all layers on the GPUs."""
    now = setup.configuration
    return replace(
        now,
        model_path=model.file.path,
        n_ctx=min(now.n_ctx, model.architecture.n_ctx_train or now.n_ctx),
        n_gpu_layers=-1,
        n_cpu_moe=0,
        tensor_overrides=(),
        draft=None,
        mmproj_path=None,
        adapters=(),
    )
