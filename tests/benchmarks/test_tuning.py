"""The table of what `kvchat tune` decides: its rows, whether two runs agree, and its place."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tuning


def found(taken: str = "off", verdict: str = "taken") -> dict[str, Any]:
    gain = {"median": 1.1, "low": 1.09, "high": 1.11, "n_blocks": 6, "noise": 0.01}
    return {
        "compared": [
            {"setting": "flash attention", "label": taken, "verdict": verdict, "gain": gain},
            {"setting": "drafts", "label": "none", "verdict": "no time", "gain": None},
        ],
        "start_tps": {"near": 50.0, "prompt": 300.0},
        "chosen_tps": {"near": 55.0, "prompt": 301.0},
    }


def test_both_runs_and_their_agreement_are_rows_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, json.dumps(found()))
    )
    lines = list(tuning.measured(Path("m.gguf"), 3.0, 0))
    assert "flash attention off: taken (6, 1.10); drafts none: no time (0)" in lines[0]
    assert "50.0 → 55.0" in lines[1]
    assert "in time" in lines[2]
    assert "verdicts of the two: the same" in lines[2]
    assert {line.count("|") for line in (*lines, *list(tuning.heading())[2:3])} == {9}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tuning.BEGIN}\nold\n{tuning.END}\nafter\n")
    tuning.write(page, "\n".join(lines))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert lines[1] in text


def test_runs_agree_where_they_took_the_same_and_contradict_nowhere() -> None:
    one = tuning.Run(found(), 1.0)
    assert tuning.agreed(one, tuning.Run(found(), 2.0))
    assert not tuning.agreed(one, tuning.Run(found("on"), 1.0))
    assert not tuning.agreed(one, tuning.Run(found(verdict="not faster"), 1.0))
    assert not tuning.agreed(one, tuning.Run({}, 1.0))
    open_one = tuning.Run(found(verdict="no time"), 1.0)
    assert tuning.agreed(open_one, tuning.Run(found(verdict="not faster"), 1.0))


def test_the_page_of_the_command_has_a_place_for_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tune.md").read_text(encoding="utf-8")
    assert 0 < page.index(tuning.BEGIN) < page.index(tuning.END)
