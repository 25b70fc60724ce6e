"""Logs of llama-server: real ones of 0c1e57098, lines of older builds, and plans beside them."""

import os
from pathlib import Path

import pytest

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.events import BufferSize
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.server_log import (
    LogError,
    ServerLog,
    compare_log,
    parse_server_log,
    read_server_log,
    settings_that_differ,
)
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model

LOGS = Path(__file__).parent / "logs"
OF_EARLY_2024 = """\
llm_load_tensors: offloaded 33/33 layers to GPU
llm_load_tensors:        CPU buffer size =   281.81 MiB
llm_load_tensors:      CUDA0 buffer size =  4155.99 MiB
llama_new_context_with_model: n_ctx      = 8192
llama_kv_cache_init:      CUDA0 KV buffer size =  1024.00 MiB
llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB
llama_new_context_with_model:  CUDA_Host  output buffer size =     0.49 MiB
llama_new_context_with_model:      CUDA0 compute buffer size =   560.00 MiB
llama_new_context_with_model:  CUDA_Host compute buffer size =    24.01 MiB
"""
TABLE = """\
0.1 I sched_reserve:      CUDA0 compute buffer size =   100.00 MiB
0.1 I f: | memory breakdown [MiB]    | total    free    self   model   context   compute    un |
0.1 I f: |   - CUDA0 (RTX 3090 (24)) | 24268 =  9000 + (14768 = 13868 +     800 +     100) +  500 |
0.1 I f: |   - Host                  |                    270 =   166 +       0 +     104        |
"""
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
CARD = Device("RTX 3090", "gpu", 24 * GIB, 24 * GIB)


def mib(log: str, kind: str, owner: str = "target") -> dict[str, float]:
    found: dict[str, float] = {}
    for buffer in read_server_log(LOGS / log).buffers:
        if (buffer.kind, buffer.owner) == (kind, owner):
            before = found.get(buffer.device, 0.0)
            found[buffer.device] = before + round(buffer.nbytes / MIB, 2)
    return found


def test_a_verbose_log_tells_every_buffer() -> None:
    assert mib("cpu_lv4.log", "model") == {"CPU_Mapped": 92.10}
    assert mib("cpu_lv4.log", "KV") == {"CPU": 45.0}
    assert mib("cpu_lv4.log", "compute") == {"CPU": 15.51}
    assert mib("cpu_lv4.log", "output") == {"CPU": 0.75}


def test_json_lines_tell_the_same_kinds() -> None:
    assert mib("cpu.jsonl", "KV") == {"CPU": 23.91}
    assert mib("gpu_gemma.jsonl", "KV") == {"CPU": 12.0, "GPU0": 15.0}, "both caches of the windows"
    assert mib("gpu_gemma.jsonl", "compute") == {"GPU0": 25.93, "GPU_Host": 7.52}


def test_a_draft_model_is_told_apart_from_its_target() -> None:
    log = "two_gpus_draft_lv4.log"
    assert mib(log, "KV") == mib(log, "KV", "draft") == {"GPU0": 24.0, "GPU1": 21.0}
    assert mib(log, "model", "draft")["GPU1"] == 58.31
    assert read_server_log(LOGS / log).settings["n_ctx"] == "2048"


def test_lines_of_old_builds_are_understood() -> None:
    log = parse_server_log(OF_EARLY_2024.splitlines(keepends=True))
    assert BufferSize("CUDA0", "model", round(4155.99 * MIB)) in log.buffers
    assert {b.kind for b in log.buffers} == {"model", "KV", "output", "compute"}
    assert len(log.buffers) == 6
    assert log.settings["n_ctx"] == "8192"


def test_a_graph_that_is_laid_out_again_counts_once() -> None:
    line = "sched_reserve:      CUDA0 compute buffer size =   {} MiB\n"
    log = parse_server_log([line.format("300.00"), line.format("120.00")])
    assert log.buffers == (BufferSize("CUDA0", "compute", 120 * MIB),)


def test_two_contexts_of_one_model_add_up() -> None:
    line = "sched_reserve:      CUDA0 compute buffer size =   120.00 MiB\n"
    start = "llama_context: constructing llama_context\n"
    assert len(parse_server_log([start, line, start, line]).buffers) == 2


def test_only_the_last_run_of_a_log_counts() -> None:
    text = (LOGS / "cpu_lv4.log").read_text().splitlines(keepends=True)
    assert parse_server_log(text + text) == parse_server_log(text)
    rows = (LOGS / "cpu.jsonl").read_text().splitlines(keepends=True)
    assert parse_server_log(rows + rows) == parse_server_log(rows)


def test_the_table_of_a_loaded_model_says_what_is_not_accounted_for() -> None:
    card, host = parse_server_log(TABLE.splitlines(keepends=True)).devices
    assert (card.name, card.description) == ("CUDA0", "RTX 3090 (24)")
    assert (card.total_bytes, card.free_bytes) == (24268 * MIB, 9000 * MIB)
    assert card.unaccounted_bytes == 500 * MIB
    assert (host.name, host.self_bytes, host.unaccounted_bytes) == ("Host", 270 * MIB, None)


def test_a_projection_before_loading_accounts_for_nothing() -> None:
    card, _ = parse_server_log(TABLE.splitlines(keepends=True)[1:]).devices
    assert card.self_bytes == 14768 * MIB
    assert card.unaccounted_bytes is None


def test_the_row_alone_is_enough() -> None:
    rows = (LOGS / "gpu_gemma.jsonl").read_text().splitlines(keepends=True)
    log = parse_server_log(row for row in rows if "fit_memory_breakdown" in row)
    assert log.buffers == ()
    assert [(d.name, d.context_bytes // MIB) for d in log.devices] == [("GPU0", 15), ("Host", 12)]


def test_state_of_compressors_is_state() -> None:
    log = parse_server_log(
        ["llama_dsv4_comp_state:      CUDA0 DSV4 CSA state buffer size =     2.00 MiB\n"]
    )
    assert log.buffers == (BufferSize("CUDA0", "RS", 2 * MIB),)


def test_a_projector_is_told_apart() -> None:
    log = parse_server_log(["alloc_compute_meta:      CUDA0 compute buffer size =   50.00 MiB\n"])
    assert log.buffers == (BufferSize("CUDA0", "compute", 50 * MIB, "projector"),)


def test_colours_and_broken_lines_do_no_harm() -> None:
    log = parse_server_log(
        [
            '{"type":"log","msg":"llama_kv_cache: CUDA0 KV buffer si\n',
            '{"type":"fit_memory_breakdown","data":{"rows":[1,{"name":"x"}]}}\n',
            '{"type":"fit_memory_breakdown","data":[]}\n',
            "[" * 100_000 + "\n",
            "{" + "[" * 100_000 + "\n",
            "\x1b[32mI \x1b[0mllama_kv_cache:      CUDA0 KV buffer size =     8.00 MiB\x1b[0m\n",
        ]
    )
    assert log.buffers == (BufferSize("CUDA0", "KV", 8 * MIB),)
    assert log.devices == ()


def test_a_log_without_memory_says_how_to_get_one(tmp_path: Path) -> None:
    quiet = tmp_path / "quiet.log"
    quiet.write_text("0.0 I srv  llama_server: model loaded\n")
    with pytest.raises(LogError, match="-lv 4"):
        read_server_log(quiet)
    with pytest.raises(LogError, match="cannot be read"):
        read_server_log(tmp_path / "none.log")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("f: D model buffer size = " + "9" * 400 + " MiB\n", "says nothing about memory"),
        ("GGUF\0\0\0 context", "no text"),
        (
            "".join(f"f: D{n} buffer size = 1.00 MiB\n" for n in range(5000)),
            "more than 4,096",
        ),
    ],
)
def test_a_log_that_no_server_wrote_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "server.log"
    path.write_text(line)
    with pytest.raises(LogError, match=reason):
        read_server_log(path)


def test_a_pipe_is_no_log_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "server.log")
    with pytest.raises(LogError, match="a pipe or a device"):
        read_server_log(tmp_path / "server.log")


def log_of(name: str) -> ServerLog:
    return read_server_log(LOGS / name)


def test_a_plan_of_the_same_configuration_agrees_term_by_term(starter_path: Path) -> None:
    configuration = Configuration(starter_path, 2048, n_slots=4, kv_unified=True, speculation=PLAIN)
    planned = estimate(read_model(starter_path), configuration, (CPU,), target="llama-server")
    log = log_of("cpu_lv4.log")
    rows = {row.kind: row for row in compare_log(planned, log)}
    assert list(rows) == ["weights", "kv", "compute"]
    assert rows["kv"].difference_bytes == 0
    assert abs(rows["weights"].difference_bytes) < MIB
    assert abs(rows["compute"].difference_bytes) < 4 * MIB
    assert settings_that_differ(planned, log) == ()


def test_half_a_model_on_a_card_is_matched_by_the_cards_number(gemma_path: Path) -> None:
    configuration = Configuration(gemma_path, 4096, n_gpu_layers=10, speculation=PLAIN)
    planned = estimate(read_model(gemma_path), configuration, (CARD, CPU), target="llama-server")
    rows = {(r.device, r.kind): r for r in compare_log(planned, log_of("gpu_gemma.jsonl"))}
    assert rows["RTX 3090", "kv"].measured_bytes == 15 * MIB
    assert rows["RTX 3090", "kv"].difference_bytes == 0
    assert rows["CPU", "kv"].difference_bytes == 0
    assert abs(rows["RTX 3090", "weights"].difference_bytes) < MIB


def test_a_breakdown_alone_is_compared_in_whole_mib(gemma_path: Path) -> None:
    configuration = Configuration(gemma_path, 4096, n_gpu_layers=10, speculation=PLAIN)
    planned = estimate(read_model(gemma_path), configuration, (CARD, CPU), target="llama-server")
    log = ServerLog((), log_of("gpu_gemma.jsonl").devices)
    rows = {(r.device, r.kind): r for r in compare_log(planned, log)}
    assert rows["RTX 3090", "kv + state"].difference_bytes == 0
    assert abs(rows["CPU", "weights"].difference_bytes) < 2 * MIB


def test_another_configuration_is_said(starter_path: Path) -> None:
    configuration = Configuration(starter_path, 4096, speculation=PLAIN)
    planned = estimate(read_model(starter_path), configuration, (CPU,), target="llama-server")
    notes = settings_that_differ(planned, log_of("cpu_lv4.log"))
    assert notes == (
        "context is 4096 in the plan, but 2048 in the log",
        "slots is 1 in the plan, but 4 in the log",
        "rows of logits (slots times drafted tokens and one) is 1 in the plan, but 4 in the log",
    )


def test_what_was_not_planned_is_shown_too(starter_path: Path) -> None:
    configuration = Configuration(starter_path, 2048, n_slots=4, kv_unified=True, speculation=PLAIN)
    planned = estimate(read_model(starter_path), configuration, (CPU,), target="llama-server")
    rows = {(r.device, r.kind): r for r in compare_log(planned, log_of("two_gpus_draft_lv4.log"))}
    assert rows["GPU1", "draft"].planned_bytes == 0
    assert rows["GPU1", "draft"].measured_bytes > 100 * MIB
