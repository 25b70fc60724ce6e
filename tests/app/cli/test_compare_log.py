"""`kvchat plan MODEL --log FILE`."""

import json
from pathlib import Path

import pytest

from app.cli.main import run

LOG = Path(__file__).parents[2] / "engine" / "memory" / "logs" / "cpu_lv4.log"
SAME = ("--target", "llama-server", "--ctx", "2048", "--slots", "4", "--unified")


def test_planned_stands_beside_measured(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(starter_path), "--log", str(LOG), *SAME]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["planned", "measured", "planned", "too", "much"] for line in lines)
    [cache] = [line for line in lines if " kv " in line]
    assert cache.split() == ["CPU", "kv", "45", "MiB", "45", "MiB", "+0.0%"]
    assert any(line.split()[:2] == ["all", "total"] for line in lines)


def test_a_log_of_another_configuration_is_said_first(
    starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(starter_path), "--log", str(LOG), *SAME[:2], "--ctx", "4096"]) == 0
    assert "4096 in the plan, but 2048 in the log" in capsys.readouterr().out.splitlines()[0]


def test_json_has_the_comparison(starter_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", str(starter_path), "--log", str(LOG), *SAME, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["log"]
    [cache] = [row for row in rows if row["kind"] == "kv"]
    assert cache["planned_bytes"] == cache["measured_bytes"] == 45 * 1024**2


def test_a_log_that_says_nothing_is_an_error(
    starter_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = tmp_path / "quiet.log"
    quiet.write_text("nothing\n")
    assert run(["plan", str(starter_path), "--log", str(quiet)]) != 0
    assert "-lv 4" in capsys.readouterr().err


def test_calibrating_keeps_what_the_log_says_about_the_card(
    starter_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("app.paths.data_dir", lambda: tmp_path)
    log = tmp_path / "card.log"
    log.write_text(
        "sched_reserve:      CUDA0 compute buffer size =   100.00 MiB\n"
        "f: |   - CUDA0 (RTX 3090) | 24268 = 23000 + (968 = 800 +  68 +  100) + 300 |\n"
    )
    arguments = ["plan", str(starter_path), "--log", str(log), "--vram", "24GiB"]
    assert run([*arguments, "--calibrate"]) == 0
    assert "RTX 3090: 300 MiB beyond buffers" in capsys.readouterr().err
    kept = json.loads((tmp_path / "calibration.json").read_text())
    assert kept["cards"]["RTX 3090"]["overhead_bytes"] == 300 * 1024**2
    assert run([*arguments[:2], "--calibrate"]) != 0
    assert "--log" in capsys.readouterr().err
