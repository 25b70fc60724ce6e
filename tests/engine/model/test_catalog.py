"""Models by name."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import ModelFileError
from engine.memory.estimate import estimate
from engine.memory.hardware import Device
from engine.memory.terms import Source, TermKind
from engine.memory.units import GIB
from engine.model.architecture import read_model
from engine.model.catalog import (
    SNAPSHOTS_PATH,
    entries,
    find_entry,
    quantized_type,
    recommended_drafts,
    unpack,
)

CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.model
@pytest.mark.parametrize(
    ("name", "quantization", "fixture"),
    [("smollm2-135m", "Q4_1", "starter_path"), ("gemma-3-270m", "Q4_K_M", "gemma_path")],
)
def test_a_catalogue_header_has_every_tensor_of_the_real_file(
    name: str, quantization: str, fixture: str, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(fixture)
    real = read_model(path)
    made = find_entry(name).model(quantization)
    assert {t.name: (t.shape, t.type.name) for t in made.file.tensors} == {
        t.name: (t.shape, t.type.name) for t in real.file.tensors
    }
    assert made.architecture.layers == real.architecture.layers
    assert made.file.n_vocab == real.file.n_vocab


def test_an_unknown_name_is_refused_with_those_that_come_near() -> None:
    with pytest.raises(ModelFileError, match=r"qwen3-8b"):
        find_entry("qwen3-8bb")


def test_no_two_entries_share_a_name() -> None:
    names = [name.lower() for entry in entries() for name in (entry.name, *entry.aliases)]
    assert len(names) == len(set(names))


def test_every_entry_has_the_source_of_its_figures() -> None:
    assert all(entry.source and entry.checked for entry in entries())
    assert {entry.name for entry in entries()} == set(unpack(SNAPSHOTS_PATH.read_bytes()))


def test_the_weights_of_a_catalogue_model_are_an_estimate(starter_path: Path) -> None:
    now = Configuration(starter_path, 4096)
    known, real = find_entry("smollm2-135m").model("Q4_1"), read_model(starter_path)
    worked_out, exact = (estimate(m, now, (CPU,)).devices[0] for m in (known, real))
    low, high = worked_out.term(TermKind.WEIGHTS).range
    assert low < exact.term(TermKind.WEIGHTS).nbytes < high
    assert worked_out.term(TermKind.WEIGHTS).source is Source.ESTIMATED
    assert exact.term(TermKind.WEIGHTS).source is Source.EXACT


def test_llama_cpp_accepts_the_headers_that_are_written(tmp_path: Path) -> None:
    names = ("smollm2-135m", "llama-2-7b", "deepseek-v2-lite", "jamba-mini", "falcon-mamba-7b")
    command = (sys.executable, "accuracy_models.py", str(tmp_path), *names, "--check")
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_model(tmp_path / "jamba-mini.Q4_K_M.gguf").file.name == "jamba-mini"


def drafts(target: str) -> list[str]:
    return [draft.name for draft in recommended_drafts(find_entry(target))]


def test_drafts_come_from_the_family_of_the_vocabulary_the_cheapest_first() -> None:
    assert drafts("llama-3.1-8b") == ["llama-3.2-1b"]
    assert drafts("llama-3.1-70b") == ["llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b"]
    assert drafts("qwen2.5-32b")[:2] == ["qwen2.5-0.5b", "qwen2.5-1.5b"]


def test_a_draft_is_much_smaller_than_its_target() -> None:
    for entry in entries():
        for draft in recommended_drafts(entry):
            assert draft.n_parameters <= 0.2 * entry.n_parameters
            assert abs(entry.n_vocab - draft.n_vocab) <= 128


def test_weights_are_as_large_as_llama_cpp_would_make_them() -> None:
    names = ("mixtral-8x7b", "qwen3-30b-a3b", "phi-2")
    command = (sys.executable, "quantization.py", *names)
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "51 of 51 within 3 %" in done.stdout


@pytest.mark.parametrize(("row", "kind"), [(4096, "q4_K"), (4544, "q5_0"), (13653, "f16")])
def test_rows_that_no_block_divides_fall_back_to_a_type_that_fits(row: int, kind: str) -> None:
    name = "blk.0.attn_q.weight"
    assert quantized_type("Q4_K_M", name, row, n_layers=32, is_tied=False).name == kind
