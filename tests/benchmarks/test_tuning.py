"""The table of what `kvchat tune` gains: its rows, whether two runs agree, and its place."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tuning


def found(median: float, *, taken: str = "off", done: bool = False) -> dict[str, Any]:
    gain = {"median": median, "low": median - 0.01, "high": median + 0.01, "n_blocks": 6}
    return {
        "noise": {"median": 1.0, "low": 0.99, "high": 1.01, "n_blocks": 6},
        "compared": [{"setting": "flash attention", "label": taken, "verdict": "taken"}],
        "total": gain,
        "start_tps": {"near": 50.0, "deep": 40.0, "prompt": 300.0},
        "chosen_tps": {"near": 55.0, "deep": 48.0, "prompt": 301.0},
        "drafts": {"recommended": "suffix:auto"},
        "was_done": done,
    }


def test_both_runs_and_their_agreement_are_rows_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [found(1.10), found(1.11), found(1.11, done=True)]
    monkeypatch.setattr(
        subprocess, "run",
        lambda *_, **__: subprocess.CompletedProcess([], 0, json.dumps(answers.pop(0))),
    )  # fmt: skip
    lines = list(tuning.measured(Path("m.gguf"), 3.0))
    assert "flash attention off" in lines[0]
    assert "1.100 (1.09 to 1.11)" in lines[0]
    assert "40.0 → 48.0" in lines[1]
    assert "the two agree; a third call found everything done" in lines[2]
    assert {line.count("|") for line in (*lines, *list(tuning.heading(3.0))[2:3])} == {11}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{tuning.BEGIN}\nold\n{tuning.END}\nafter\n")
    tuning.write(page, "\n".join(lines))
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert lines[1] in text


def test_runs_agree_where_they_took_the_same_and_their_gains_meet() -> None:
    one = tuning.Run(found(1.10), 1.0)
    assert tuning.agreed(one, tuning.Run(found(1.11), 1.0))
    assert not tuning.agreed(one, tuning.Run(found(1.2), 1.0))
    assert not tuning.agreed(one, tuning.Run(found(1.1, taken="on"), 1.0))
    nothing = tuning.Run({**found(1.1), "total": None}, 1.0)
    assert tuning.agreed(nothing, nothing)
    assert not tuning.agreed(one, nothing)


def test_the_page_of_the_command_has_a_place_for_the_table() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tune.md").read_text(encoding="utf-8")
    assert 0 < page.index(tuning.BEGIN) < page.index(tuning.END)
