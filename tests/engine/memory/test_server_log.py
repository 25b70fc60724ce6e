"""Buffers that a llama-server of 0c1e57098 prints in its log, and plans beside them."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import BufferSize
from engine.memory.dry_run import measured_bytes
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.server_log import LogError, parse_buffers, read_buffers
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model

LOGS = Path(__file__).parent / "logs"
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)


def mib(buffers: Iterable[BufferSize], kind: str, owner: str = "target") -> dict[str, float]:
    found: dict[str, float] = {}
    for buffer in buffers:
        if (buffer.kind, buffer.owner) == (kind, owner):
            before = found.get(buffer.device, 0.0)
            found[buffer.device] = before + round(buffer.nbytes / MIB, 2)
    return found


def test_a_verbose_log_has_every_buffer() -> None:
    found = read_buffers(LOGS / "cpu_lv4.log")
    assert mib(found, "model") == {"CPU_Mapped": 92.10}
    assert mib(found, "KV") == {"CPU": 45.0}
    assert mib(found, "compute") == {"CPU": 15.51}
    assert mib(found, "output") == {"CPU": 0.75}


def test_a_draft_model_is_separate_from_its_target() -> None:
    found = read_buffers(LOGS / "two_gpus_draft_lv4.log")
    assert mib(found, "KV") == mib(found, "KV", "draft") == {"GPU0": 24.0, "GPU1": 21.0}
    assert mib(found, "model", "draft")["GPU1"] == 58.31


def test_a_graph_that_is_laid_out_again_counts_once() -> None:
    line = "sched_reserve:      CUDA0 compute buffer size =   {} MiB\n"
    found = parse_buffers(line.format("300.00") + line.format("120.00"))
    assert found == (BufferSize("CUDA0", "compute", 120 * MIB),)


@pytest.mark.parametrize(
    ("line", "buffer"),
    [
        ("llama_dsv4_comp_state:   CUDA0 DSV4 CSA state buffer size =  2.00 MiB",
         BufferSize("CUDA0", "RS", 2 * MIB)),
        ("alloc_compute_meta:   CUDA0 compute buffer size =  50.00 MiB",
         BufferSize("CUDA0", "compute", 50 * MIB, "projector")),
        ("\x1b[32mI \x1b[0mllama_kv_cache:  CUDA0 KV buffer size =  8.00 MiB\x1b[0m",
         BufferSize("CUDA0", "KV", 8 * MIB)),
    ],
)  # fmt: skip
def test_lines_of_compressors_projectors_and_colours(line: str, buffer: BufferSize) -> None:
    assert parse_buffers(f"{line}\nllama_kv_cache: CUDA0 KV buffer si\n") == (buffer,)


@pytest.mark.parametrize(
    "text",
    [
        "0.0 I srv  llama_server: model loaded\n",
        "f: D model buffer size = " + "9" * 400 + " MiB\n",
        "GGUF\0\0\0 context",
        "".join(f"f: D{n} model buffer size = 1.00 MiB\n" for n in range(5000)),
    ],
)
def test_a_log_without_buffers_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(text)
    with pytest.raises(LogError):
        read_buffers(path)


def test_a_pipe_is_no_log_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "server.log")
    for name in ("server.log", "none.log"):
        with pytest.raises(LogError):
            read_buffers(tmp_path / name)


def test_a_plan_of_the_same_configuration_agrees_term_by_term(starter_path: Path) -> None:
    configuration = Configuration(starter_path, 2048, n_slots=4, kv_unified=True, speculation=PLAIN)
    planned = estimate(read_model(starter_path), configuration, (CPU,), target="llama-server")
    found = measured_bytes(read_buffers(LOGS / "cpu_lv4.log"), planned.devices)
    off = {kind: planned.devices[0].term(kind).nbytes - found["CPU", kind] for _, kind in found}
    assert off[TermKind.KV] == 0
    assert abs(off[TermKind.WEIGHTS]) < MIB
    assert abs(off[TermKind.COMPUTE]) < 4 * MIB
