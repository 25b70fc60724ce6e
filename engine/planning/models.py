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
class Offer:
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
class Bench:
    """What offers are judged by: the setup of now and its devices."""

    setup: Setup
    devices: tuple[Device, ...]


def bench_of(setup: Setup | None, planner: Planner) -> Bench:
    """Give what models are judged by: a setup; without one, the usual context on this machine."""
    setup = setup or Setup(Configuration(Path("any"), AUTO_N_CTX))
    return Bench(setup, planner.devices_of(setup))


def library_offers(
    models: Sequence[ModelEntry], facts: Sequence[tuple[str, ...]], bench: Bench
) -> Iterator[Offer]:
    """Give the models of this machine one by one; their headers are read."""
    for entry, shown in zip(models, facts, strict=True):
        offer = Offer(str(entry.path), entry.name, shown, problem=entry.problem or "")
        if offer.problem:
            yield offer
            continue
        try:
            yield judged(offer, read_model(entry.path), bench)
        except EngineError as error:
            yield replace(offer, problem=str(error))


def catalog_offers(
    quantization: str, bench: Bench, facts: Callable[[Model], tuple[str, ...]]
) -> Iterator[Offer]:
    """Give the models of the catalogue one by one, as if they had been quantised so.

    What cannot be had in that quantisation says so. `facts` says what a row tells of a model.
    """
    for entry in sorted(entries(), key=_by_name):
        key = f"{entry.name}:{quantization}"
        offer = Offer(key, entry.name, (quantization,))
        try:
            model = entry.model(quantization)
            offer = judged(replace(offer, facts=facts(model)), model, bench)
        except EngineError as error:
            offer = replace(offer, problem=str(error))
        yield offer


def _by_name(entry: CatalogEntry) -> list[tuple[int, float, str]]:
    """Sort names by their words and numbers: 4b comes before 12b."""
    parts = re.findall(r"\d+(?:\.\d+)?|[^\d]+", entry.name.lower())
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]


def judged(offer: Offer, model: Model, bench: Bench) -> Offer:
    """Give an offer with its verdict: the knobs of now, every layer on the GPUs.

    Raises:
        PresetError: llama.cpp refuses the model with those knobs.
    """
    found = _cost(model, bench, n_gpu_layers=-1)
    margin = bench.setup.margin_bytes
    verdict = verdict_of(found, margin)
    used = [device for device in found.devices if device.total_bytes]
    scarce = min(used, key=lambda device: device.left_bytes)
    spills = verdict is Verdict.NO and _spills(model, bench, found)
    return replace(
        offer,
        verdict=verdict,
        needed_bytes=scarce.total_bytes,
        free_bytes=scarce.device.free_bytes,
        spills=spills,
    )


def _spills(model: Model, bench: Bench, whole: Estimate) -> bool:
    """Whether the GPUs are short and main memory is not."""
    margin = bench.setup.margin_bytes
    if all(device.device.kind == "cpu" for device in whole.devices):
        return False
    main = _cost(model, bench, n_gpu_layers=0)
    return all(
        device_verdict(device, margin) is Verdict.FITS
        for device in main.devices
        if device.device.kind == "cpu"
    )


def _cost(model: Model, bench: Bench, *, n_gpu_layers: int) -> Estimate:
    now = bench.setup.configuration
    configuration = replace(
        now,
        model_path=model.file.path,
        n_ctx=min(now.n_ctx, model.architecture.n_ctx_train or now.n_ctx),
        n_gpu_layers=n_gpu_layers,
        n_cpu_moe=0,
        tensor_overrides=(),
        draft=None,
        mmproj_path=None,
        lora_paths=(),
    )
    return estimate(model, configuration, bench.devices, target=bench.setup.target)
