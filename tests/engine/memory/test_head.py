"""Models that draft with their own next-token head, as llama.cpp's dry run laid them out."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration, PredictorName, SpeculationSettings
from engine.memory.estimate import Estimate, estimate
from engine.memory.hardware import Device
from engine.memory.terms import Target, TermKind
from engine.memory.units import GIB, MIB
from engine.model.catalog import find_entry

CPU = Device("CPU", "cpu", 900 * GIB, 900 * GIB)
OFF = SpeculationSettings(predictor=PredictorName.OFF)
PLAIN = Configuration(Path("m.gguf"), 32768, flash_attention="on", speculation=OFF)


def planned(name: str, n_draft: int, target: Target = "llama-server", **fields: object) -> Estimate:
    now = replace(PLAIN, n_mtp_draft=n_draft, **fields)  # type: ignore[arg-type]
    return estimate(find_entry(name).model(), now, (CPU,), target=target)


def term(found: Estimate, kind: TermKind) -> int:
    return found.devices[0].term(kind).nbytes


@pytest.mark.parametrize(
    ("name", "kv_mib", "graph_mib"),
    [("qwen3.6-27b", 128, 130), ("glm-4.5-air", 128, 148), ("deepseek-v3.2", 36, 399)],
)
def test_the_head_keeps_a_cache_and_a_graph_of_its_own(
    name: str, kv_mib: int, graph_mib: int
) -> None:
    graph = term(planned(name, 3), TermKind.DRAFT) / MIB - kv_mib
    assert 0.8 * graph_mib <= graph <= 1.25 * graph_mib
    half = term(planned(name, 3, n_ctx=16384), TermKind.DRAFT) / MIB
    assert graph + kv_mib - half > kv_mib / 2 - 1
    assert term(planned(name, 0), TermKind.DRAFT) == 0


def test_the_heads_weights_are_loaded_for_it_alone() -> None:
    with_head, without = planned("glm-4.5-air", 3), planned("glm-4.5-air", 0)
    head = [t for t in find_entry("glm-4.5-air").model().file.tensors if "blk.46." in t.name]
    added = term(with_head, TermKind.WEIGHTS) - term(without, TermKind.WEIGHTS)
    assert abs(added - sum(tensor.nbytes for tensor in head)) <= 32 * len(head)


def test_states_keep_a_row_for_every_token_that_may_be_taken_back() -> None:
    plain, drafting = planned("qwen3.6-27b", 0), planned("qwen3.6-27b", 3)
    assert term(plain, TermKind.STATE) == round(149.625 * MIB)
    assert term(drafting, TermKind.STATE) == round(598.5 * MIB)
    assert term(planned("qwen3.6-27b", 0, n_slots=4), TermKind.STATE) == round(598.5 * MIB)


def test_kvchat_does_not_draft_with_the_head() -> None:
    assert (
        planned("qwen3.6-27b", 3, "kvchat").devices == planned("qwen3.6-27b", 0, "kvchat").devices
    )


def test_a_model_without_a_head_is_told_so() -> None:
    assert any("no next-token head" in text for text in planned("qwen3-8b", 3).warnings)
    assert any("kvchat" in text for text in planned("qwen3.6-27b", 3, "kvchat").warnings)
