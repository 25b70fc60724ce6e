"""The accuracy table is made by one command, from real rows."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.gguf import read_gguf

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accuracy.py"

pytestmark = pytest.mark.model


def run(*arguments: object) -> None:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=100)


def test_rows_worst_rows_and_page_come_from_one_command(starter_path: Path, tmp_path: Path) -> None:
    rows, worst, page = (tmp_path / name for name in ("rows.jsonl", "worst.txt", "page.md"))
    program = tmp_path / "llama-fit-params"
    mib = sum(tensor.nbytes for tensor in read_gguf(starter_path).tensors) >> 20
    program.write_text(f'#!/bin/sh\ntest "$2" = {starter_path} && echo "Host {mib} 90 98"\n')
    program.chmod(0o700)
    run(
        starter_path, "--out", rows, "--worst", worst, "--docs", page, "--fit-params", program
    )  # fmt: skip
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) >= 12
    for row in found:
        [sizes] = row["truth"]["buffers"].values()
        assert row["formula"]["kv"] == sizes["context"], row["case"]
    assert "| key-value cache exact to the byte | yes | 17 of 17 |" in page.read_text()
    printed = "weights within 1 MiB of what llama-fit-params prints"
    assert f"| {printed} | yes | 1 of 1 devices |" in page.read_text()
    assert "KV: 0 of 17 wrong" in worst.read_text()


def test_what_llama_cpp_said_once_is_not_asked_again_and_formulas_are(
    starter_path: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    run(starter_path, "--out", rows)
    known = [json.loads(line) for line in rows.read_text().splitlines()]
    for row in known:
        row["truth"]["output_grown"] = 12345
        row["formula"] = {}
    rows.write_text("".join(json.dumps(row) + "\n" for row in known))
    run(starter_path, "--out", rows)
    again = [json.loads(line) for line in rows.read_text().splitlines()]
    assert {row["truth"]["output_grown"] for row in again} == {12345}
    assert all(row["formula"]["kv"] for row in again)


def test_a_file_that_is_none_is_named_and_the_others_are_compared(
    starter_path: Path, tmp_path: Path
) -> None:
    broken, page = tmp_path / "broken.gguf", tmp_path / "page.md"
    broken.write_bytes(b"no model")
    run(broken, starter_path, "--out", tmp_path / "rows.jsonl", "--docs", page)
    text = page.read_text()
    assert "- left out: broken: " in text
    assert "17 of 17" in text
