"""What `kvchat tune` writes, keeps and tells, on a machine whose speeds are known."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import paths
from app.bench.short import Drafting, DraftingProgress
from app.bench.verdict import Recommendation
from app.cli.main import run
from app.config import Settings
from app.opening import ModelRequest, open_model
from app.startup import Services
from app.tuning import default_name
from engine.configuration import Configuration
from engine.errors import WorkerError
from engine.memory.hardware import Device
from engine.model.identity import model_identity
from engine.model.speeds import ModelSpeed, Speeds
from engine.presets.library import find_preset
from engine.tuning.tuner import Tuner
from tests.drafting_models import drafting_model
from tests.engine.tuning.fake_machine import FakeMachine, as_ever
from tests.engine.tuning.test_tuner import quick_without_flash


class Bench(FakeMachine):
    """The fake machine as the command opens one."""

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class NoDrafts:
    """A benchmark of drafts that leaves everything open, or fails."""

    failure: str | None = None

    def __init__(self, *_: object) -> None:
        self.result: Drafting | None = None
        self.n_measured = 0

    def run(self) -> Iterator[DraftingProgress]:
        if self.failure is not None:
            raise WorkerError(self.failure)
        yield DraftingProgress(1, 2.0)
        self.result = Drafting(Recommendation(None, "too few", is_open=True), (), 1, True)


Tune = Callable[..., tuple[int, str, str]]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KVCHAT_MODELS", str(tmp_path / "models"))
    return drafting_model(tmp_path / "models" / "tiny.gguf", 1)


@pytest.fixture
def tune(model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tune:
    monkeypatch.setattr("app.tuning.ShortBenchmark", NoDrafts)
    monkeypatch.setattr("app.tuning.usable_cores", lambda: (4, 4))

    def tuned(machine: Bench, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("app.tuning.Engines", lambda *_: machine)
        code = run(["tune", *arguments])
        return code, *capsys.readouterr()

    return tuned


def test_what_is_quicker_becomes_a_preset_and_the_lists_know_the_speed(
    model: Path, tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = tune(Bench(quick_without_flash), "tiny")
    assert code == 0
    assert "taken" in out
    assert "flash attention, off" in err
    assert "fewer of them are exact" in out
    preset = find_preset("tuned tiny", paths.presets_dir())
    assert (preset.flash_attention, preset.n_threads, preset.model) == ("off", None, str(model))
    assert preset.sampling.temperature == 0.7
    usual = open_model(ModelRequest("tiny"), Settings()).configuration
    opened = open_model(ModelRequest(preset="tuned tiny"), Settings()).configuration
    assert opened == replace(usual, flash_attention="off")
    speed = Speeds(paths.speeds_path()).of(model_identity(model))
    assert speed is not None
    assert speed.preset == "tuned tiny"
    assert speed.decode_tps == pytest.approx(60 * 1.08, rel=0.02)
    run(["models"])
    listed = capsys.readouterr().out.splitlines()
    assert listed[0].split()[6] == "tok/s"
    assert "65" in listed[1].split()


def test_a_plan_for_this_machine_says_how_fast_the_model_is(
    tune: Tune, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["plan", "tiny"])
    assert "\nmeasured here" not in capsys.readouterr().out
    tune(Bench(quick_without_flash), "tiny")
    run(["plan", "tiny"])
    line = next(x for x in capsys.readouterr().out.splitlines() if x.startswith("measured here"))
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
    code, _, _ = tune(Bench(quick_without_flash), "--preset", "mine")
    assert code == 0
    preset = find_preset("tuned mine", paths.presets_dir())
    assert (preset.n_ctx, preset.system_prompt) == (512, "Be brief.")
    assert preset.flash_attention == "off"


def test_where_nothing_is_quicker_the_preset_has_the_settings_of_now(
    model: Path, tune: Tune
) -> None:
    code, out, _ = tune(Bench(as_ever), "tiny")
    assert code == 0
    assert "Nothing that was tried is clearly quicker" in out
    assert "kvchat --preset 'tuned tiny'" in out
    usual = open_model(ModelRequest("tiny"), Settings()).configuration
    assert open_model(ModelRequest(preset="tuned tiny"), Settings()).configuration == usual
    preset = find_preset("tuned tiny", paths.presets_dir())
    assert preset.description.endswith("nothing beats these")
    speed = Speeds(paths.speeds_path()).of(model_identity(model))
    assert speed is not None
    assert speed.preset == "tuned tiny"


def test_a_second_run_measures_nothing_and_says_so(tune: Tune) -> None:
    tune(Bench(quick_without_flash), "tiny")
    again = Bench(quick_without_flash)
    code, out, _ = tune(again, "tiny", "--json")
    assert (code, again.n_runs) == (0, 0)
    found = json.loads(out)
    assert (found["was_done"], found["is_complete"]) == (True, True)
    assert found["changes"] == {"flash_attention": "off"}
    assert found["preset"] == "tuned tiny"
    anew = Bench(quick_without_flash)
    tune(anew, "tiny", "--again")
    assert anew.n_runs > 100


def test_what_was_stopped_goes_on(tune: Tune) -> None:
    code, _, err = tune(Bench(quick_without_flash, is_interrupted_at=100), "tiny")
    assert code == 130
    assert "goes on there" in err
    second = Bench(quick_without_flash)
    code, _, err = tune(second, "tiny")
    assert code == 0
    assert "earlier runs" in err
    whole = Bench(quick_without_flash)
    tune(whole, "tiny", "--again")
    assert second.n_runs < whole.n_runs - 90


def test_a_preset_of_the_users_own_is_not_replaced(tune: Tune) -> None:
    paths.presets_dir().mkdir(parents=True)
    mine = paths.presets_dir() / "tuned-tiny.toml"
    mine.write_text('name = "tuned tiny"\n# mine\n')
    bench = Bench(quick_without_flash)
    code, _, err = tune(bench, "tiny")
    assert (code, bench.n_runs) == (1, 0)  # before anything is measured
    assert "name another with --write" in err
    assert "# mine" in mine.read_text()
    tune(bench, "tiny", "--write", "other")
    assert find_preset("other", paths.presets_dir()).flash_attention == "off"


def test_all_layers_on_a_gpu_are_a_word_of_the_preset(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths.presets_dir().mkdir(parents=True)
    (paths.presets_dir() / "cpu.toml").write_text(
        'name = "cpu"\nmodel = "tiny"\nn_gpu_layers = 0\n'
    )
    devices = Device("GPU 0", "gpu", 8 << 30, 8 << 30), Device("CPU", "cpu", 8 << 30, 8 << 30)
    monkeypatch.setattr("app.tuning.usable_devices", lambda: devices)

    def offloaded(configuration: Configuration, workload: str) -> float:
        return 1.0 if configuration.n_gpu_layers == 0 else 4.0 + (configuration.n_gpu_layers < 0)

    code, out, _ = tune(Bench(offloaded), "--preset", "cpu")
    assert code == 0
    assert "layers on the GPU" in out
    assert find_preset("tuned cpu", paths.presets_dir()).n_gpu_layers == "all"


def test_drafts_have_a_quarter_of_the_time(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []

    class Counted(Tuner):
        def __init__(self, *arguments: Any, budget_s: float, **others: Any) -> None:
            shares.append(budget_s)
            super().__init__(*arguments, budget_s=budget_s, **others)

    class Drafts(NoDrafts):
        def __init__(self, *arguments: object) -> None:
            shares.append(arguments[2])  # type: ignore[arg-type]  # seconds
            super().__init__()

    monkeypatch.setattr("app.tuning.Tuner", Counted)
    tune(Bench(), "tiny", "--minutes", "4")
    monkeypatch.setattr("app.tuning.ShortBenchmark", Drafts)
    tune(Bench(), "tiny", "--minutes", "4", "--again")
    assert shares == [180.0, 180.0, 60.0]


def test_a_name_that_is_none_is_told_before_anything_is_measured(tune: Tune) -> None:
    bench = Bench(quick_without_flash)
    code, _, err = tune(bench, "tiny", "--write", "../../evil")
    assert (code, bench.n_runs) == (1, 0)
    assert "name" in err


def test_a_draft_model_that_was_named_is_part_of_the_preset(model: Path, tune: Tune) -> None:
    draft = drafting_model(model.with_name("draft.gguf"), 3)
    code, _, _ = tune(Bench(quick_without_flash), "tiny", "--draft", "draft")
    assert code == 0
    preset = find_preset("tuned tiny", paths.presets_dir())
    assert preset.draft is not None
    assert preset.draft.model == str(draft)


def test_no_room_to_write_loses_no_measurement(tune: Tune) -> None:
    paths.state_dir().mkdir(parents=True)
    paths.tuning_dir().write_text("a file in the way")
    code, out, _ = tune(Bench(quick_without_flash), "tiny")
    assert code == 0
    assert "a stopped run will begin anew" in out
    assert "taken" in out
    assert out.count("begin anew") == 1


def test_drafts_that_cannot_be_measured_are_told(
    tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NoDrafts, "failure", "the engine died")
    code, out, _ = tune(Bench(quick_without_flash), "tiny")
    assert code == 0
    assert "drafts were not measured: the engine died" in out
    assert "Written:" in out


def test_models_that_cannot_be_tuned_are_named(model: Path, tune: Tune) -> None:
    assert tune(Bench(), "missing")[0] == 1
    broken = model.with_name("broken.gguf")
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    code, _, err = tune(Bench(), str(broken))
    assert code == 1
    assert "broken.gguf" in err
    failing = Bench(failing={"llama.cpp could not load tiny.gguf": lambda now: True})
    code, _, err = tune(failing, "tiny", "--again")
    assert code == 1
    assert "llama.cpp could not load tiny.gguf" in err


def test_a_model_is_offered_to_be_tuned_once(model: Path) -> None:
    from app.startup import _first_hint

    folders = [model.parent]
    assert "kvchat tune tiny measures" in str(_first_hint(model, folders))
    assert _first_hint(model, folders) is None
    other = drafting_model(model.with_name("other.gguf"), 2)
    speed = ModelSpeed(60.0, 50.0, 1024, 400.0, "", "2026-11-22")
    Speeds(paths.speeds_path()).keep(model_identity(other), speed)
    assert _first_hint(other, folders) is None
    elsewhere = drafting_model(model.parent.parent / "a folder" / "new.gguf", 3)
    assert f"kvchat tune '{elsewhere}' measures" in str(_first_hint(elsewhere, folders))
    assert Services.__dataclass_fields__["first_hint"].default(model) is None


def test_names_of_presets_are_possible_whatever_the_file_is_called() -> None:
    assert default_name(Path("Qwen 2.5 (1.5B)[Q4].gguf")) == "tuned Qwen-2.5--1.5B--Q4"
    assert default_name(Path("\u4f60.gguf")) == "tuned \u4f60"
    assert default_name(Path("...gguf")) == "tuned model"
    assert default_name(Path("cpu 1.5")) == "tuned cpu-1.5"
    assert len(default_name(Path(f"{'x' * 300}.gguf"))) <= 60


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
        entries["speeds"][key] = {**entries["speeds"][key], "decode_tps": bad}
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
