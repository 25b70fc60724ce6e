"""What a search finds, llama.cpp takes, and it allocates no more than was there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.configuration import KVTypes
from engine.memory.dry_run import DryRun
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model
from engine.planning.search import Goal, SearchLimits, search

pytestmark = pytest.mark.model
PAIRS = (*((KVTypes.parse(name),) for name in ("f16", "q8_0", "q4_0")), None)


@pytest.fixture(scope="module")
def dry_run() -> Iterator[DryRun]:
    with DryRun() as runner:
        yield runner


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("which", ["starter", "gemma"])
def test_what_is_found_is_taken_and_fits(
    which: str, goal: Goal, pairs: object, dry_run: DryRun, starter_path: Path, gemma_path: Path
) -> None:
    model = read_model(starter_path if which == "starter" else gemma_path)
    for mib in (500, 700):
        ram = Device("CPU", "cpu", GIB, mib * MIB)
        limits = SearchLimits(min_n_ctx=512, pairs=pairs)  # type: ignore[arg-type]
        found = search(model, (ram,), goal, target="kvchat", margin_bytes=0, limits=limits)
        [planned] = found.estimate.devices
        beside = sum(planned.term(kind).nbytes for kind in (TermKind.WEIGHTS, TermKind.OVERHEAD))
        buffers = dry_run.measure(found.configuration)
        measured = sum(buffer.nbytes for buffer in buffers if buffer.kind != "model")
        assert beside + measured <= mib * MIB
