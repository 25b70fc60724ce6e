"""Planned numbers beside those of a log."""

from pathlib import Path

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.server_log import ServerLog, compare_log, read_server_log, settings_that_differ
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model

LOGS = Path(__file__).parent / "logs"
PLAIN = SpeculationSettings(predictor=PredictorName.OFF)
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
CARD = Device("RTX 3090", "gpu", 24 * GIB, 24 * GIB)


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
