"""What a name means: a file here, a file elsewhere, a model of the catalogue."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.planning import user_planner
from engine.memory.units import GIB
from engine.model.library import ModelNotFoundError, UnknownNameError
from engine.planning.machine import PlannedMachine
from engine.planning.measured import can_measure
from engine.planning.planner import warnings_of
from engine.planning.request import PlanRequest, setup_of, suit_to_machine, take_model
from engine.presets.preset import Preset
from tests.app.cli.conftest import kvchat
from tests.support.filled_projectors import filled_projector
from tests.support.gguf_files import header, llama_values, write
from tests.support.gguf_server import Server, serving

TENSORS = [("token_embd.weight", (64, 3), 0, 0)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    for name in ("HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "LLAMA_CACHE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("KVCHAT_MODELS", str(tmp_path / "models"))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    data = header(llama_values(), TENSORS)
    with serving() as server:
        server.files["/o/r/resolve/main/far.gguf"] = data + bytes(-len(data) % 32 + 768)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_plan_reads_a_remote_header_once_and_works_without_the_server_then(server: Server) -> None:
    first = kvchat("plan", "hf:o/r/far.gguf", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["model"] == "far.gguf"
    server.refusals["/o/r/resolve/main/far.gguf"] = (503, "")
    again = json.loads(kvchat("plan", "hf:o/r/far.gguf", "--json").stdout)
    assert "the server does not answer" in again["warnings"][0]
    assert len(server.asked) == 2


def test_a_model_of_the_catalogue_is_planned_without_a_file() -> None:
    planner = user_planner()
    setup = setup_of(PlanRequest("qwen3-8b:q8_0", machine=PlannedMachine((12 * GIB,))), planner)
    plan = planner.plan(setup)
    assert plan.model.file.file_type == "Q8_0"
    assert not setup.configuration.model_path.is_absolute(), "an export names no file of another's"
    assert "kvchat's catalogue (config.json of Qwen/Qwen3-8B" in warnings_of(plan)[0]
    assert not can_measure(plan)


def test_a_file_of_the_library_comes_before_the_catalogue(folder: Path) -> None:
    path = write(folder / "Qwen3-8B-Q4_K_M.gguf", header(llama_values(), TENSORS), data_bytes=768)
    for name in ("qwen3-8b", "qwen3-8b:Q4_K_M"):
        assert take_model(name, user_planner()) == path
    planner = user_planner()
    assert not warnings_of(planner.plan(setup_of(PlanRequest(str(path)), planner)))


def test_a_draft_of_the_catalogue_is_reported_as_missing() -> None:
    planner = user_planner()
    asked = PlanRequest("qwen3-8b", draft="qwen3-0.6b", machine=PlannedMachine((24 * GIB,)))
    warnings = warnings_of(planner.plan(setup_of(asked, planner)))
    assert "the draft model qwen3-0.6b" in warnings[1]


def test_an_unknown_name_names_what_is_near_here_and_in_the_catalogue(folder: Path) -> None:
    write(folder / "qwen3-9b-mine.gguf", header(llama_values(), TENSORS), data_bytes=768)
    with pytest.raises(UnknownNameError, match=r"similar: qwen3-9b-mine.*catalogue.*qwen3-8b"):
        take_model("qwen3-9bb", user_planner())
    with pytest.raises(ModelNotFoundError, match="does not exist") as caught:
        take_model("/nowhere/qwen3-8b", user_planner())
    assert "catalogue" not in str(caught.value)


def test_fixed_layers_stay_and_others_suit_the_machine(starter_path: Path) -> None:
    planner = user_planner()
    setup = setup_of(PlanRequest(str(starter_path), machine=PlannedMachine((8 * GIB,))), planner)
    setup = setup.with_configuration(replace(setup.configuration, n_gpu_layers=1))
    assert suit_to_machine(setup, planner).configuration.n_gpu_layers not in (0, 1)
    suited = suit_to_machine(setup, planner, fixed=frozenset({"n_gpu_layers"}))
    assert suited.configuration.n_gpu_layers == 1


def test_a_plan_without_a_gpu_leaves_out_the_one_that_the_preset_plans_for() -> None:
    rules = Preset(name="x", vram_gib=8)
    machine = PlannedMachine(has_gpu=False)
    setup = setup_of(PlanRequest("qwen3-0.6b", machine=machine), user_planner(), rules)
    assert setup.machine == machine


def test_a_model_of_the_catalogue_has_the_name_that_was_asked_for() -> None:
    planner = user_planner()
    setup = setup_of(PlanRequest("llama-3.3-70b:q8_0", machine=PlannedMachine((GIB,))), planner)
    assert setup.configuration.model_path == Path("llama-3.3-70b.Q8_0.gguf")
    assert "under the name llama-3.1-70b" in warnings_of(planner.plan(setup))[0]
    assert take_model("Qwen3-8B", planner) == Path("qwen3-8b.Q4_K_M.gguf")
    paths = [take_model(name, planner) for name in ("llama3.1:8b", "llama3.1:8b:Q6_K")]
    assert [planner.model(path).file.file_type for path in paths] == ["Q4_K_M", "Q6_K"]


def test_a_model_elsewhere_takes_no_projector_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    filled_projector(tmp_path / "mmproj-x.gguf", n_embd=4096)
    asked = PlanRequest("llama-3.1-8b", machine=PlannedMachine((12 * GIB,)))
    assert setup_of(asked, user_planner()).configuration.mmproj_path is None
