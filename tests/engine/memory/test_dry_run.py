"""A dry run of llama.cpp: what is asked and measured, how it refuses, its numbers in a plan."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, DraftConfiguration, TensorOverride
from engine.errors import WorkerError
from engine.events import BufferSize
from engine.memory.dry_run import MAX_TOKENS, DryRun, with_measured
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.terms import Source, TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model
from tests.support.made_models import made_headers, written_model
from tests.support.waiting import wait_until

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
CARDS = tuple(Device(f"Card {name}", "gpu", 24 * GIB, 24 * GIB) for name in "AB")


def kinds_of(buffers: tuple[BufferSize, ...], owner: str) -> dict[str, int]:
    return {b.kind: b.nbytes for b in buffers if b.owner == owner and b.nbytes}


def test_more_tokens_than_any_model_knows_are_refused_before_anything_is_started() -> None:
    now = Configuration(Path("/m.gguf"), MAX_TOKENS + 1)
    with DryRun(command=("/no such program",)) as runner:
        with pytest.raises(WorkerError, match=r"10,485,760 tokens of context, not 10,485,761"):
            runner.measure(now)
        with pytest.raises((WorkerError, OSError), match="no such program"):
            runner.measure(replace(now, n_ctx=MAX_TOKENS))


@pytest.mark.model
def test_a_draft_is_laid_out_beside_its_target(dry_run: DryRun, starter_path: Path) -> None:
    draft = DraftConfiguration(starter_path, n_ctx=1024, type_k="q8_0", type_v="q8_0")
    configuration = Configuration(starter_path, n_ctx=2048, draft=draft)
    buffers = dry_run.measure(configuration)
    target, beside = kinds_of(buffers, "target"), kinds_of(buffers, "draft")
    assert target["KV"] == 2048 * 30 * 2 * 192 * 2
    assert beside["KV"] == pytest.approx(1024 * 30 * 2 * 192 * 34 / 32, abs=6000)
    assert beside["compute"] < target["compute"]
    assert target["output"] == pytest.approx(17 * 49152 * 4, rel=0.02), (
        "grown to 16 drafted and one"
    )
    assert beside["output"] == pytest.approx(49152 * 4, rel=0.02)


@pytest.mark.model
def test_a_pattern_that_is_none_is_refused_with_its_reason(
    dry_run: DryRun, starter_path: Path
) -> None:
    broken = Configuration(
        starter_path, n_ctx=512, tensor_overrides=(TensorOverride("ffn_(up", "CPU"),)
    )
    with pytest.raises(WorkerError, match="cannot read"):
        dry_run.measure(broken)
    assert dry_run.measure(Configuration(starter_path, n_ctx=512))


@pytest.mark.model
def test_state_beyond_the_memory_limit_is_refused_and_the_process_goes_on(
    dry_run: DryRun, tmp_path: Path
) -> None:
    path = written_model(tmp_path / "wide.gguf", made_headers()["wide mamba"]).file.path
    one = Configuration(path, n_ctx=512, n_slots=1)
    state = kinds_of(dry_run.measure(one, "llama-server"), "target")["RS"]
    assert state == pytest.approx(4 * 128 * 1024 * (128 + 3), abs=6000)
    many = Configuration(path, n_ctx=65536, n_slots=256)
    with pytest.raises(WorkerError, match=r"limit of .* GiB"):
        dry_run.measure(many, "llama-server")
    assert dry_run.measure(one, "llama-server")


def test_a_crash_of_llama_cpp_is_reported_and_the_next_question_is_answered(
    tmp_path: Path,
) -> None:
    """The stand-in crashes at its first question and answers the next."""
    flag = tmp_path / "crashed"
    answer = '{"buffers": [{"device": "CPU", "kind": "compute", "nbytes": 5}]}'
    script = f"read line; [ -e {flag} ] || {{ touch {flag}; kill -ABRT $$; }}; echo '{answer}'"
    configuration = Configuration(Path("m.gguf"), n_ctx=512)
    with DryRun(("sh", "-c", script)) as runner:
        with pytest.raises(WorkerError, match=r"crashed in its dry run .* .signal 6."):
            runner.measure(configuration)
        assert runner.measure(configuration) == (BufferSize("CPU", "compute", 5),)


@pytest.mark.model
def test_what_native_code_prints_never_stands_between_answers(tmp_path: Path) -> None:
    code = (
        "import ctypes, engine.backends.llama_cpp.dry_run as d; channel = d.answer_channel();"
        "libc = ctypes.CDLL(None); libc.puts(b'noise'); libc.fflush(None); channel.write('answer')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("answer", "noise\n")


def test_a_process_that_starts_while_the_dry_run_is_closed_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runner = DryRun((sys.executable, "-c", "input()"))
    popen, started = subprocess.Popen, []

    def slow(*arguments: object, **named: object) -> object:
        runner.close()
        started.append(popen(*arguments, **named))  # type: ignore[call-overload]
        return started[-1]

    monkeypatch.setattr("engine.memory.dry_run.subprocess.Popen", slow)
    with pytest.raises(WorkerError, match="was stopped"):
        runner.measure(Configuration(Path("m.gguf"), n_ctx=256))
    assert started[0].poll() is not None


def planned(path: Path, *cards: Device, draft: DraftConfiguration | None = None) -> Estimate:
    configuration = Configuration(path, 2048, draft=draft)
    model = read_model(path)
    return estimate(model, configuration, (*cards, CPU), draft=model if draft else None)


def test_graphs_lie_on_the_device_of_their_number_and_the_rest_on_the_cpu(
    starter_path: Path,
) -> None:
    buffers = (
        BufferSize("CUDA0", "compute", 11 * MIB),
        BufferSize("CUDA1", "compute", 12 * MIB),
        BufferSize("CUDA_Host", "compute", 3 * MIB),
        BufferSize("CUDA_Host", "output", 1 * MIB),
    )
    found = with_measured(planned(starter_path, *CARDS), buffers).devices
    assert [device.term(TermKind.COMPUTE).nbytes // MIB for device in found] == [11, 12, 4]
    assert all(device.term(TermKind.COMPUTE).source is Source.MEASURED for device in found)


def test_a_cache_over_two_cards_is_shared_as_in_the_formula(starter_path: Path) -> None:
    before = planned(starter_path, *CARDS)
    same = with_measured(before, (BufferSize("", "KV", 45 * MIB),))
    double = with_measured(before, (BufferSize("", "KV", 90 * MIB),))
    for old, same_device, new in zip(before.devices, same.devices, double.devices, strict=True):
        assert same_device.term(TermKind.KV) == old.term(TermKind.KV)
        assert new.term(TermKind.KV).nbytes == 2 * old.term(TermKind.KV).nbytes
    assert double.devices[0].term(TermKind.KV).source is Source.MEASURED


def test_state_that_the_formula_does_not_know_of_is_not_lost(starter_path: Path) -> None:
    found = with_measured(planned(starter_path, *CARDS), (BufferSize("", "RS", 90 * MIB),))
    sizes = [device.term(TermKind.STATE).nbytes for device in found.devices]
    assert sum(sizes) == pytest.approx(90 * MIB, abs=3)
    assert min(sizes) > 0


def test_a_drafts_cache_and_graph_are_counted_with_its_weights(starter_path: Path) -> None:
    draft = DraftConfiguration(starter_path, n_ctx=1024)
    before = planned(starter_path, draft=draft)
    buffers = (
        BufferSize("CPU", "compute", 7 * MIB, "draft"),
        BufferSize("", "KV", 30 * MIB, "draft"),
        BufferSize("CPU", "compute", 21 * MIB),
    )
    model = read_model(starter_path)
    [device] = with_measured(before, buffers, model).devices
    weights = device.term(TermKind.WEIGHTS).nbytes
    assert device.term(TermKind.DRAFT).nbytes == weights + 37 * MIB
    assert device.term(TermKind.DRAFT).source is Source.MEASURED
    assert device.term(TermKind.COMPUTE).nbytes == 21 * MIB
    [without] = with_measured(before, buffers).devices
    assert without.term(TermKind.DRAFT) == before.devices[0].term(TermKind.DRAFT)


def test_closing_the_dry_run_ends_a_wait_for_its_answer(tmp_path: Path) -> None:
    flag = tmp_path / "asked"
    script = "import sys; sys.stdin.readline(); open(sys.argv[1], 'w'); sys.stdin.read()"
    silent = DryRun((sys.executable, "-c", script, str(flag)))
    errors: list[str] = []

    def ask() -> None:
        try:
            silent.measure(Configuration(tmp_path / "m.gguf", n_ctx=512))
        except WorkerError as error:
            errors.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    wait_until(flag.exists)
    silent.close()
    asker.join(10)
    assert errors == ["llama.cpp's dry run was stopped"]
