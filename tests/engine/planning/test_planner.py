"""Setups, plans and options on real headers."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engine.configuration import Configuration, DraftConfiguration
from engine.events import BufferSize
from engine.memory.hardware import Device
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.catalog import find_entry
from engine.planning.machine import PlannedMachine
from engine.planning.measured import holders
from engine.planning.options import OPTIONS
from engine.planning.planner import Planner, Setup, warnings_of
from engine.planning.values import OptionError

OPTION = {option.name: option for option in OPTIONS}


def small_setup(path: Path, n_ctx: int = 4096) -> Setup:
    return Setup(Configuration(path, n_ctx), machine=PlannedMachine((2 * GIB,)))


def test_every_option_turns_and_comes_back(starter_path: Path) -> None:
    planner = Planner()
    setup = replace(
        small_setup(starter_path), target="llama-server", machine=PlannedMachine((2 * GIB, 2 * GIB))
    )
    setup = replace(setup, configuration=replace(setup.configuration, tensor_split=(60.0, 40.0)))
    facts = planner.facts_of(setup)
    for option in OPTIONS:
        if option.chooser is not None:
            continue
        start = option.step(setup, facts, -1) if option.name == "n_gpu_layers" else setup
        turned = option.step(start, facts, 1)
        assert turned != start, option.name
        planner.plan(turned)
        assert option.format(turned) != option.format(start)
        assert option.format(option.step(turned, facts, -1)) == option.format(start)


def test_what_an_option_shows_can_be_typed(starter_path: Path) -> None:
    setup = small_setup(starter_path)
    for option in OPTIONS:
        assert option.parse(setup, option.format(setup)) == setup, option.name


MAY_BE_ZERO = {"n_mtp_draft", "n_gpu_layers", "n_cpu_moe", "main_gpu", "margin"}
MAY_BE_EMPTY = {"vram", "tensor_split"}


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "nan"])
def test_no_typed_nonsense_reaches_a_plan(text: str, starter_path: Path) -> None:
    setup = small_setup(starter_path)
    for option in OPTIONS:
        if option.name in {"0": MAY_BE_ZERO, "": MAY_BE_EMPTY}.get(text, ()):
            continue
        with pytest.raises(OptionError):
            option.parse(setup, text)


def test_the_ubatch_is_never_larger_than_the_batch(starter_path: Path) -> None:
    read_batch, read_ubatch = OPTION["n_batch"].parse, OPTION["n_ubatch"].parse
    assert read_batch is not None
    assert read_ubatch is not None
    small = read_batch(small_setup(starter_path), "128")
    assert small.configuration.n_ubatch == 128
    with pytest.raises(OptionError, match="batch size of 128"):
        read_ubatch(small, "256")
    top = OPTION["n_ubatch"].step(small, Planner().facts_of(small), 1)
    assert top.configuration.n_ubatch == 128


def test_memory_of_what_is_loaded_counts_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = Device("CPU", "cpu", 8 * GIB, 4 * GIB)
    gpu = Device("Card", "gpu", 8 * GIB, 1 * GIB)
    monkeypatch.setattr("engine.planning.machine.planned_devices", lambda **_: (gpu, cpu))
    loaded = (
        BufferSize("CUDA0", "model", 3 * GIB),
        BufferSize("CUDA0", "KV", 2 * GIB),
        BufferSize("CPU_Mapped", "model", 1 * GIB),
        BufferSize("CPU_REPACK", "model", 200 * MIB),
        BufferSize("CPU", "compute", 100 * MIB),
    )
    planner = Planner(loaded=loaded)
    found_gpu, found_cpu = planner.devices(PlannedMachine())
    assert found_gpu.free_bytes == 6 * GIB
    # Mapped weights are pages of the file, and free already; repacked ones are not.
    assert found_cpu.free_bytes == 4 * GIB + 300 * MIB
    typed_ram, _ = planner.devices(PlannedMachine(ram_bytes=64 * GIB))
    assert typed_ram.free_bytes == 6 * GIB, "a typed RAM size makes no card smaller"


def test_two_equal_cards_are_two_devices(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, cpu = Device("Card", "gpu", 8 * GIB, 8 * GIB), Device("CPU", "cpu", 8 * GIB, 8 * GIB)
    monkeypatch.setattr("engine.planning.machine.planned_devices", lambda **_: (card, card, cpu))
    first, second, _ = Planner().plan(Setup(Configuration(starter_path, 4096))).estimate.devices
    assert (first.device.name, second.device.name) == ("GPU 0 · Card", "GPU 1 · Card")
    alone = Planner().plan(Setup(Configuration(starter_path, 4096, split_mode="none")))
    whole = alone.estimate.devices[0].term(TermKind.KV).nbytes
    assert first.term(TermKind.KV).nbytes + second.term(TermKind.KV).nbytes == whole


@pytest.mark.parametrize(
    ("target", "draft", "message"),
    [
        ("qwen2.5-0.5b", "qwen2.5-7b", "times as many bytes per token as the target"),
        ("qwen2.5-7b", "llama-3.2-1b", "cannot draft for qwen2.5-7b"),
        ("qwen2.5-7b", "qwen2.5-0.5b", None),
    ],
)
def test_a_draft_that_cannot_pay_or_fit_is_warned_of(
    target: str, draft: str, message: str | None
) -> None:
    planner = Planner()
    paths = [planner.add(find_entry(name).model()) for name in (target, draft)]
    configuration = Configuration(paths[0], 4096, draft=DraftConfiguration(paths[1], 4096))
    warnings = warnings_of(planner.plan(Setup(configuration, machine=PlannedMachine((64 << 30,)))))
    about = [text for text in warnings if "faster" in text or "draft for" in text]
    assert len(about) == (message is not None)
    assert message is None or message in about[0]


def test_a_planner_that_remembers_gives_what_one_that_forgets_would(starter_path: Path) -> None:
    first = Setup(Configuration(starter_path, 4096), machine=PlannedMachine((2 * GIB,)))
    others = (
        first,
        replace(first, target="llama-server"),
        replace(first, machine=PlannedMachine((3 * GIB,))),
        replace(first, machine=PlannedMachine(cards=("GeForce RTX 4090",))),
        replace(first, machine=PlannedMachine(ram_bytes=16 * GIB)),
    )
    planner = Planner(remembers=True)
    for setup in (*others, *others):
        found, fresh = planner.plan(setup), Planner().plan(setup)
        assert found.max_n_ctx == fresh.max_n_ctx
        for ours, theirs in zip(found.estimate.devices, fresh.estimate.devices, strict=True):
            assert ours.terms == theirs.terms
            assert ours.device.name == theirs.device.name
            assert ours.device.total_bytes == theirs.device.total_bytes


def test_processes_on_a_gpu_are_named_the_largest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [(0, own := os.getpid(), 2 * GIB), (1, own, None), (0, 1 << 30, 3 * GIB)]
    processes = [SimpleNamespace(gpu=n, pid=pid, used_bytes=used) for n, pid, used in held]
    monkeypatch.setattr("engine.planning.measured.nvidia_processes", lambda: processes)
    others, this, unknown = holders()
    assert others == f"another user's program (process {1 << 30}) uses 3 GiB of GPU 0"
    assert f"(process {own}) uses 2 GiB of GPU 0" in this
    assert f"(process {own}) uses memory of GPU 1" in unknown
