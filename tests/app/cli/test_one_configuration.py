"""Plan, export, fit, run and chat answer with one configuration for one preset."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from app import paths
from app.cli import main
from app.config import Settings, load_settings
from app.opening import ModelRequest, choose_model, open_model
from app.planning import with_settings
from app.startup import prepare
from engine.configuration import Configuration, PredictorName
from engine.memory import hardware
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.planning.cache_types import type_rules
from engine.planning.models import library_options
from engine.planning.planner import Planner
from engine.planning.request import PlanRequest, setup_of
from engine.presets.library import find_preset, save_preset
from engine.presets.llama_server import arguments
from engine.presets.preset import made_preset
from tests.app.cli.conftest import json_of, refusal
from tests.support.gguf_files import header, write
from tests.support.made_models import made_model

CARD = Device("GPU 0", "gpu", 6 * GIB, 5 * GIB)
ADAPTER_ROWS = 2 * GIB // 2048 // 4
CPU = Device("CPU", "cpu", 64 * GIB, 64 * GIB)
VALUES = {
    "block_count": 32, "context_length": 131072, "embedding_length": 2048,
    "feed_forward_length": 8192, "attention.head_count": 32, "attention.head_count_kv": 8,
}  # fmt: skip
PRESETS: Mapping[str, Mapping[str, object]] = {
    "nothing": {},
    "a goal": {"goal": "balanced"},
    "a goal with slots": {"goal": "balanced", "n_ctx": 32768, "n_slots": 4},
    "slots": {"n_slots": 4, "n_ctx": "max"},
    "types": {"type_k": "q8_0", "type_v": "q8_0", "n_ctx": "max"},
    "open types": {"type_k": "auto", "type_v": "auto", "kv_budget_gib": 1},
    "another card": {"vram_gib": 3, "n_ctx": 16384},
    "an adapter": {"lora": ["adapter.gguf"]},
    "half of the layers": {"n_gpu_layers": 16, "n_ctx": 100_000},
    "experts": {"goal": "context", "vram_gib": 2, "kv_unified": True, "n_slots": 2},
}


@pytest.fixture
def model(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model of 5.6 GiB on a machine with one small card, beside an adapter of 2 GiB."""
    monkeypatch.setattr(hardware, "find_gpus", lambda: (CARD,))
    monkeypatch.setattr(hardware, "find_cpu", lambda: CPU)
    monkeypatch.setattr(hardware, "has_gpu_backend", lambda: True)
    monkeypatch.chdir(tmp_path)
    made_model(tmp_path / "model.gguf", "llama", VALUES)
    keys = {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"}
    tensors = [("blk.31.attn_q.weight.lora_a", (2048, ADAPTER_ROWS), 0, 0)]
    write(tmp_path / "adapter.gguf", header(keys, tensors), data_bytes=2048 * ADAPTER_ROWS * 4)
    for name, rules in PRESETS.items():
        save_preset(made_preset({"name": name, **rules}), paths.presets_dir())
    return str(tmp_path / "model.gguf")


def planned(model: str, rules: str | None, settings: Settings) -> Configuration:
    preset = None if rules is None else find_preset(rules, paths.presets_dir())
    return setup_of(PlanRequest(model), Planner(), with_settings(preset, settings)).configuration


@pytest.mark.parametrize("name", PRESETS)
def test_one_preset_is_one_configuration_wherever_it_is_asked_for(name: str, model: str) -> None:
    settings = load_settings().settings
    request = ModelRequest(model, preset=name)
    opened = open_model(request, settings).configuration
    chat = choose_model(request, ()).configure(Path(model), settings)
    assert opened == chat == planned(model, name, settings)
    assert json_of("plan", model, "--preset", name)["args"] == arguments(opened)
    exported = json_of("export", model, "--preset", name)["args"]
    assert exported == arguments(opened)


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("name", ["nothing", "another card", "a goal", "an adapter"])
def test_what_is_planned_is_what_opens(
    name: str,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    has_gpu: bool,
) -> None:
    monkeypatch.setattr(hardware, "has_gpu_backend", lambda: has_gpu)
    monkeypatch.setenv("KVCHAT_MODELS", str(Path(model).parent))
    parts = prepare(ModelRequest(model, preset=name))
    parts.close()
    opened = parts.services.configure(Path(model))
    plan = json_of("plan", model, "--preset", name)
    layers = opened.n_gpu_layers if has_gpu else 0
    assert plan["args"] == arguments(replace(opened, n_gpu_layers=layers))
    sizes = {device["kind"]: device["total_bytes"] for device in plan["devices"]}
    assert ("gpu" in sizes) is has_gpu
    panel = parts.services.planned_bytes(opened)
    assert panel.buffers + panel.overhead == sum(sizes.values())
    context = parts.services.fit_context()
    assert context is not None
    [listed] = library_options(parts.services.scan(), [()], context)
    assert listed.spills is has_gpu, "larger than the card, smaller than RAM"


def test_a_plan_names_the_card_that_kvchat_cannot_use(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "has_gpu_backend", lambda: False)
    for target, is_used in (("kvchat", False), ("llama-server", True)):
        plan = json_of("plan", model, "--target", target)
        warnings = plan["warnings"]
        assert any(CARD.name in warning for warning in warnings) is not is_used
        devices = plan["devices"]
        assert any(device["kind"] == "gpu" for device in devices) is is_used


def test_the_settings_count_in_a_plan_as_in_a_chat(model: str) -> None:
    printed = {
        "cache": {"slots": 4},
        "chat": {"temperature": 0.3},
        "engine": {"n_threads": 3, "n_ctx": 4096, "use_extra_buffers": False},
        "speculation": {"predictor": "lookup", "controller": "fixed", "n_draft": 5},
    }
    settings = Settings.model_validate(printed)
    opened = open_model(ModelRequest(model), settings).configuration
    assert planned(model, None, settings) == opened
    assert (opened.n_slots, opened.n_ctx) == (4, 4096)
    assert (opened.n_threads, opened.use_extra_buffers) == (3, False)
    assert (opened.sampling.temperature, opened.speculation.n_draft) == (0.3, 5)


@pytest.mark.parametrize("rules", [None, "[draft]\nmodel = 'DRAFT'", "[speculation]\nn_draft = 2"])
def test_a_draft_model_drafts_in_a_plan_as_in_a_chat(
    rules: str | None, starter_path: Path, tmp_path: Path
) -> None:
    preset = None
    if rules is not None:
        preset = tmp_path / "own.toml"
        preset.write_text(f'name = "own"\n{rules}'.replace("DRAFT", str(starter_path)))
    settings, draft = load_settings().settings, str(starter_path)
    request = ModelRequest(draft, draft=draft, preset=preset and str(preset))
    opened = open_model(request, settings).configuration
    found = with_settings(preset and find_preset(str(preset), tmp_path), settings)
    assert setup_of(PlanRequest(draft, draft=draft), Planner(), found).configuration == opened
    assert opened.draft is not None
    names_predictor = rules is not None and "speculation" in rules
    assert (opened.speculation.predictor is PredictorName.COMBINED) is not names_predictor


@pytest.mark.parametrize(
    "typed",
    [
        {"n_ctx": 32768},
        {"type_k": "q8_0", "type_v": "q8_0", "n_ctx": 65536},
        {"n_gpu_layers": 7},
        {"lora": ("adapter.gguf:0.5",), "n_ctx": 16384},
    ],
)
def test_what_is_typed_is_settled_with_the_rest(model: str, typed: dict[str, object]) -> None:
    settings = load_settings().settings
    n_ctx = typed.get("n_ctx")
    rules = {key: value for key, value in typed.items() if key != "n_ctx"}
    assert n_ctx is None or isinstance(n_ctx, int)
    opened = open_model(ModelRequest(model, n_ctx=n_ctx, rules=rules), settings).configuration
    setup = setup_of(PlanRequest(model, rules=typed), Planner(), with_settings(None, settings))
    assert setup.configuration == opened


def test_adapters_take_memory_before_layers_and_context(model: str) -> None:
    settings = load_settings().settings
    without, with_adapter = (
        open_model(ModelRequest(model, preset=name), settings).configuration
        for name in ("nothing", "an adapter")
    )
    assert 0 < with_adapter.n_gpu_layers < 33
    planner = Planner()
    setup = setup_of(PlanRequest(model), planner, find_preset("an adapter", paths.presets_dir()))
    assert planner.plan(setup).fits
    assert without.n_gpu_layers > with_adapter.n_gpu_layers


@pytest.mark.parametrize("target", ["kvchat", "llama-server"])
def test_a_context_of_a_goal_is_that_of_all_slots(target: str, model: str) -> None:
    words = ("--slots", "4", "--min-context", "8192", "--max-context", "8192")
    found = json_of("fit", model, *words, "--target", target)
    configuration = found["configuration"]
    assert configuration["n_ctx"] == 4 * 8192
    rules = made_preset({"name": "x", "goal": "balanced", "n_ctx": 32768, "n_slots": 4})
    same = setup_of(PlanRequest(model, target=target), Planner(), rules).configuration  # type: ignore[arg-type]  # one of both
    assert (same.n_ctx, same.n_gpu_layers) == (32768, configuration["n_gpu_layers"])


def test_types_and_attention_that_do_not_go_together_are_refused_before_a_load(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_preset(made_preset({"name": "plain", "flash_attention": "off"}), paths.presets_dir())
    words = ("-m", model, "--preset", "plain", "--max-tokens", "1", "hi")
    printed = []
    for types in (("--kv", "q8_0"), ("--type-k", "q8_0", "--type-v", "q8_0")):
        assert main.run(["run", *types, *words]) == 1
        printed.append(capsys.readouterr().err)
    assert printed[0] == printed[1]
    assert "flash" in printed[0]
    assert type_rules("q8_0", None) == {"type_k": "q8_0", "type_v": "q8_0"}


@pytest.mark.parametrize("command", ["plan", "fit", "run"])
def test_a_draft_of_another_vocabulary_is_refused_by_every_command(
    command: str, starter_path: Path, gemma_path: Path
) -> None:
    words = ("-m", str(gemma_path), "hi") if command == "run" else (str(gemma_path),)
    assert "cannot draft for gemma-3-270m-Q4_K_M.gguf" in refusal(
        command, *words, "--draft", str(starter_path)
    )
