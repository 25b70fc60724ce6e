"""What `kvchat tune` writes, saves and prints, on a machine whose speeds are known."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from app import paths
from app.cli.main import run
from app.config import Settings
from app.opening import ModelRequest, open_model
from engine.experiment.tuner import Tuner
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.presets.library import find_preset
from tests.engine.experiment.fake_machine import FakeMachine, as_ever, fast_without_flash
from tests.support.drafting_models import drafting_model

Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(home: Path) -> Path:
    return drafting_model(home / "models" / "tiny.gguf", 1)


@pytest.fixture
def tune(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tune:
    monkeypatch.setattr("app.tuning.usable_cores", lambda: (4, 4))
    monkeypatch.setattr("app.tuning.threads_beside", lambda *_: 4)

    def tuned(machine: FakeMachine, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("app.tuning.TimingProcess", lambda *_: machine)
        monkeypatch.setattr("app.tuning.Tuner", partial(Tuner, clock=machine.clock))
        clock = SimpleNamespace(monotonic=machine.clock)
        monkeypatch.setattr("app.tuning.time", clock)
        monkeypatch.setattr("app.cli.tune.time", clock)
        code = run(["tune", "--minutes", "10", *arguments])
        assert machine.is_closed or not machine.n_runs
        return code, *capsys.readouterr()

    return tuned


def test_what_is_faster_becomes_a_preset_and_the_lists_know_the_speed(
    model: Path, tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = tune(FakeMachine(fast_without_flash, noise=0.0), "tiny")
    assert code == 0
    assert "chosen" in out
    assert "flash attention, off" in err
    assert "replies can differ" in out
    preset = find_preset("tuned tiny", paths.presets_dir())
    assert (preset.flash_attention, preset.n_threads, preset.model) == ("off", None, str(model))
    assert preset.sampling.temperature == 0.7
    usual = open_model(ModelRequest("tiny"), Settings()).configuration
    opened = open_model(ModelRequest(preset="tuned tiny"), Settings()).configuration
    assert opened == replace(usual, flash_attention="off")
    speed = Speeds(paths.speeds_path()).of(model_identity(model))
    assert speed.preset == "tuned tiny"
    assert speed.decode_tps == pytest.approx(60 * 1.08, rel=0.02)
    run(["models"])
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].split()[6] == "tok/s"
    assert "65" in listed[1].split()


def test_a_plan_for_this_machine_reports_how_fast_the_model_is(
    tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["plan", "tiny"])
    assert "preset tuned tiny" not in capsys.readouterr().out
    tune(FakeMachine(fast_without_flash, noise=0.0), "tiny")
    run(["plan", "tiny"])
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("measured "))
    assert "65 tok/s" in line
    assert line.endswith("preset tuned tiny")
    run(["plan", "tiny", "--json"])
    assert json.loads(capsys.readouterr().out)["speed"]["preset"] == "tuned tiny"
    for other in (["--vram", "8GiB"], ["--target", "llama-server"]):
        run(["plan", "tiny", "--json", *other])
        assert json.loads(capsys.readouterr().out)["speed"] is None


def test_a_preset_that_it_starts_from_gives_its_rules_and_its_name(
    tune: Tune,
) -> None:
    paths.presets_dir().mkdir(parents=True)
    mine = 'name = "mine"\nmodel = "tiny"\nn_ctx = 512\nsystem_prompt = "Be brief."\n'
    (paths.presets_dir() / "mine.toml").write_text(mine)
    code, _, _ = tune(FakeMachine(fast_without_flash), "--preset", "mine")
    assert code == 0
    preset = find_preset("tuned mine", paths.presets_dir())
    assert (preset.n_ctx, preset.system_prompt) == (512, "Be brief.")
    assert preset.flash_attention == "off"


def test_where_nothing_is_faster_the_preset_has_the_settings_of_now(
    model: Path, tune: Tune
) -> None:
    code, out, _ = tune(FakeMachine(as_ever), "tiny")
    assert code == 0
    assert "No setting is clearly faster" in out
    assert "kvchat --preset 'tuned tiny'" in out
    usual = open_model(ModelRequest("tiny"), Settings()).configuration
    assert open_model(ModelRequest(preset="tuned tiny"), Settings()).configuration == usual
    preset = find_preset("tuned tiny", paths.presets_dir())
    assert preset.description.endswith("no other setting was faster")
    speed = Speeds(paths.speeds_path()).of(model_identity(model))
    assert speed.preset == "tuned tiny"


def test_a_preset_tuned_for_another_model_is_not_replaced(model: Path, tune: Tune) -> None:
    for _ in range(2):  # the same model may be tuned again
        assert tune(FakeMachine(fast_without_flash), "tiny", "--preset", "balanced")[0] == 0
    other = drafting_model(model.with_name("other.gguf"), 2)
    assert tune(FakeMachine(as_ever), "other", "--preset", "balanced")[0] == 0
    presets = [
        find_preset(f"tuned {name} balanced", paths.presets_dir()) for name in ("tiny", "other")
    ]
    assert [preset.model for preset in presets] == [str(model), str(other)]
    bench = FakeMachine(as_ever)
    assert tune(bench, "other", "--write", "tuned tiny balanced")[0] == 1
    assert bench.n_runs == 0


def test_a_preset_of_the_users_own_is_not_replaced(tune: Tune) -> None:
    paths.presets_dir().mkdir(parents=True)
    mine = paths.presets_dir() / "tuned-tiny.toml"
    mine.write_text('name = "tuned tiny"\n# mine\n')
    bench = FakeMachine(fast_without_flash)
    code, _, err = tune(bench, "tiny")
    assert (code, bench.n_runs) == (1, 0)  # before anything is measured
    assert "with --write" in err
    assert "# mine" in mine.read_text()
    tune(bench, "tiny", "--write", "other")
    assert find_preset("other", paths.presets_dir()).flash_attention == "off"


def test_a_name_that_is_none_is_recorded_before_anything_is_measured(tune: Tune) -> None:
    bench = FakeMachine(fast_without_flash)
    code, _, err = tune(bench, "tiny", "--write", "../../evil")
    assert (code, bench.n_runs) == (1, 0)
    assert "name" in err


def test_a_draft_model_that_was_named_is_part_of_the_preset(model: Path, tune: Tune) -> None:
    draft = drafting_model(model.with_name("draft.gguf"), 3)
    code, _, _ = tune(FakeMachine(fast_without_flash), "tiny", "--draft", "draft")
    assert code == 0
    preset = find_preset("tuned tiny", paths.presets_dir())
    assert preset.draft.model == str(draft)


def test_ctrl_c_leaves_a_preset_of_what_was_found(tune: Tune) -> None:
    machine = FakeMachine(fast_without_flash, is_interrupted_at=160)
    code, out, _ = tune(machine, "tiny")
    assert code == 130
    assert find_preset("tuned tiny", paths.presets_dir()).flash_attention == "off"
    assert "No time was left" in out


def test_ctrl_c_before_anything_was_measured_writes_nothing(tune: Tune) -> None:
    code, _, err = tune(FakeMachine(is_interrupted_at=1), "tiny")
    assert code == 130
    assert "no preset was written" in err
    assert not paths.presets_dir().exists()


def test_without_time_for_the_settings_as_they_are_there_is_no_preset_and_advice(
    tune: Tune,
) -> None:
    code, _, err = tune(FakeMachine(slowness=1e4), "tiny")
    assert code == 1
    assert "raise --minutes" in err
    assert not paths.presets_dir().exists()


def test_a_preset_that_cannot_be_written_loses_no_measurement(tune: Tune) -> None:
    paths.presets_dir().parent.mkdir(parents=True)
    paths.presets_dir().write_text("a file in the way")
    code, out, _ = tune(FakeMachine(fast_without_flash), "tiny", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["changes"] == {"flash_attention": "off"}
    assert found["preset"] is None
    assert "no preset was written" in found["problem"]


def test_a_speed_measured_beside_other_programs_reports_it_and_is_not_saved(
    model: Path, tune: Tune
) -> None:
    out = tune(FakeMachine(n_others=1.0), "tiny")[1]
    assert "Other programs used 1.0 cores" in out
    assert Speeds(paths.speeds_path()).of(model_identity(model)) is None
    assert "Other programs" not in tune(FakeMachine(), "tiny")[1]
    assert Speeds(paths.speeds_path()).of(model_identity(model)) is not None


def test_models_that_cannot_be_tuned_are_named(model: Path, tune: Tune) -> None:
    assert tune(FakeMachine(), "missing")[0] == 1
    broken = model.with_name("broken.gguf")
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    code, _, err = tune(FakeMachine(), str(broken))
    assert code == 1
    assert "broken.gguf" in err
    failing = FakeMachine(failing={"llama.cpp could not load tiny.gguf": lambda now: True})
    code, _, err = tune(failing, "tiny")
    assert code == 1
    assert "llama.cpp could not load tiny.gguf" in err


def test_a_speed_is_of_this_machine_and_read_back_within_bounds(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    speed = ModelSpeed(60.0, 50.0, 1024, 400.0, "tuned", "2026-11-22")
    Speeds(path).keep("model", speed)
    assert Speeds(path).of("model") == speed
    assert Speeds(path).of("other") is None
    assert Speeds(path).of(None) is None
    for bad in ("nan", float("nan"), -1, 0, None, [], 1e300):
        entries = json.loads(path.read_text())
        (key,) = entries["speeds"]
        entries["speeds"][key] = [{**entries["speeds"][key][0], "decode_tps": bad}]
        other = tmp_path / "bad.json"
        other.write_text(json.dumps(entries))
        assert Speeds(other).of("model") is None


def test_tune_comes_before_bench_and_bench_before_chats(tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    tuned = ModelSpeed(60.0, 50.0, 1024, 400.0, "tuned", "2026-11-22")
    benched = ModelSpeed(55.0, None, None, None, "", "2026-11-23", by="bench", n_replies=8)
    chatted = ModelSpeed(50.0, None, None, None, "", "2026-11-23", by="chats", n_replies=3)
    speeds = Speeds(path, lambda: {"name": chatted})
    assert speeds.of("model", "name") == chatted
    assert speeds.of(None, "name") == chatted
    speeds.keep("model", benched)
    assert speeds.of("model", "name") == benched
    speeds.keep("model", tuned)
    assert speeds.of("model", "name") == tuned
    assert speeds.of("model", "other") == tuned
