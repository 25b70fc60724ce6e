"""Plans, searches and exports give the recorded numbers.

`.venv/bin/python -m tests.app.cli.test_recorded_plans` records them again; a commit that does so
explains which numbers moved.
"""

import io
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import product
from pathlib import Path

import pytest

from app.cli.main import run
from engine.configuration import (
    Adapter,
    Configuration,
    ControllerName,
    DraftConfiguration,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
    TensorOverride,
)
from engine.memory import hardware
from engine.memory.kv_cache import KV_TYPES
from engine.presets.export import ExportRequest
from engine.presets.formats import FORMATS, read_text
from engine.presets.library import preset_of
from engine.presets.preset import Preset

PLANS = Path(__file__).parents[2] / "recordings" / "plans.json"
EXPORTS = PLANS.with_name("exports.json")
MODELS = (
    "llama-2-7b", "llama-3.1-70b", "qwen2.5-7b", "gemma-2-9b", "gemma-3-12b", "gemma-3n-e4b",
    "gpt-oss-20b", "qwen3-30b-a3b", "deepseek-v2-lite", "falcon-mamba-7b", "nemotron-nano-9b-v2",
    "qwen3-next-80b-a3b",
)  # fmt: skip
MACHINES = {
    "cpu": "--ram 64GiB",
    "one card": "--vram 12GiB --ram 32GiB",
    "two cards": "--vram 2x24GiB --ram 64GiB",
    "unequal cards": "--vram 24GiB --vram 8GiB --ram 64GiB",
}
PLAN_OPTIONS = {
    "cpu": "",
    "one card": "--kv q8_0",
    "two cards": "--ctx 64k --slots 4 --target llama-server",
    "unequal cards": "--kv q8_0/q4_0 --ubatch 256",
}
GOALS = dict(zip(MACHINES, ("balanced", "speed", "quality", "context"), strict=True))
WRAPPINGS = ("shell", "systemd", "compose", "models-preset", "llama-swap")
"""Formats around the command line of llama-server, which lose what it loses."""
PROGRAMS = ("llama-server", "lm-studio", "ollama", "koboldcpp", "llama-cpp-python")
PREDICTORS = ("off", "lookup", "suffix", "combined", "draft")
N_DRAWN = 40
TYPES = sorted(KV_TYPES)
NUMBERS = (
    "--ctx-size", "--n-gpu-layers", "--n-cpu-moe", "--cpu-moe", "--tensor-split", "--cache-type-k",
    "--cache-type-v", "--ubatch-size",
)  # fmt: skip


@contextmanager
def same_processor() -> Iterator[None]:
    """A machine without GPUs whose processor repacks weights for AVX2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "find_gpus", tuple)
        patch.setattr(hardware, "instructions_here", lambda: "avx2")
        yield


def answer(*words: str) -> dict[str, object] | None:
    """What a command prints as JSON; None where it refuses."""
    printed = io.StringIO()
    with same_processor(), redirect_stdout(printed):
        code = run([*words, "--json"])
    found = None if code else json.loads(printed.getvalue())
    assert found is None or isinstance(found, dict)
    return found


def terms(found: dict[str, object]) -> dict[str, dict[str, object]]:
    """The terms of each device that has any; an estimate with its bounds."""
    devices = found["devices"]
    return {
        device["name"]: {
            name.removesuffix("_bytes"): nbytes if low == high else [low, nbytes, high]
            for name, (low, high) in device["range"].items()
            if (nbytes := device[name]) or high
        }
        for device in devices
        if device["total_bytes"]
    }


def planned(model: str, machine: str) -> object:
    found = answer("plan", model, *MACHINES[machine].split(), *PLAN_OPTIONS[machine].split())
    if found is None:
        return None
    arguments = found["args"]
    flags = {
        flag.strip("-"): value
        for flag, value in zip(arguments, [*arguments[1:], ""], strict=True)
        if flag in NUMBERS
    }
    chosen = {name: found[name] for name in ("n_ctx", "max_n_ctx", "fits")}
    return {**chosen, **flags, "devices": terms(found)}


def searched(model: str, machine: str) -> object:
    found = answer("fit", model, *MACHINES[machine].split(), "--goal", GOALS[machine])
    if found is None:
        return None
    chosen = found["configuration"]
    return {name: value for name, value in chosen.items() if value is not None} | {
        "devices": terms(found)
    }


def drawn_configuration(number: int) -> Configuration:
    """A configuration with every value that presets hold, drawn by its number."""
    of = random.Random(number)
    predictor = PredictorName(of.choice(PREDICTORS))
    n_ctx, n_batch = of.randint(1, 512) * 256, of.randint(1, 4096)
    draft = DraftConfiguration(
        Path("/models/draft.gguf"), n_ctx, of.choice((-1, 0, 12)), *of.choices(TYPES, k=2)
    )
    return Configuration(
        model_path=Path(of.choice(("/models/a.gguf", "/models/it's a model.gguf"))),
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=of.randint(1, n_batch),
        type_k=of.choice(TYPES),
        type_v=of.choice(TYPES),
        flash_attention=of.choice(("auto", "on", "off")),
        n_gpu_layers=of.choice((-1, 0, 20)),
        n_slots=of.choice((1, 1, 4)),
        kv_unified=of.random() < 0.5,
        swa_full=of.random() < 0.5,
        offload_kqv=of.random() < 0.7,
        split_mode=of.choice(("layer", "layer", "none")),
        main_gpu=of.choice((0, 0, 1)),
        tensor_split=of.choice(((), (), (3.0, 1.0))),
        rpc_workers=of.choice(((), (), ("host1:50052",))),
        n_cpu_moe=of.choice((0, 0, -1, 7)),
        tensor_overrides=of.choice(((), (), (TensorOverride(r"blk\.0\.ffn_up_exps", "CPU"),))),
        mmproj_path=of.choice((None, None, Path("/models/mmproj.gguf"))),
        adapters=of.choice(((), (), (Adapter(Path("/models/lora.gguf"), 0.5),))),
        n_threads=of.choice((None, 6)),
        n_threads_batch=of.choice((None, 12)),
        use_mmap=of.random() < 0.8,
        n_mtp_draft=of.choice((0, 0, 3)),
        use_extra_buffers=of.random() < 0.8,
        draft=draft if predictor is PredictorName.DRAFT else None,
        speculation=SpeculationSettings(
            predictor=predictor,
            controller=ControllerName(of.choice(("fixed", "auto"))),
            n_draft=of.randint(1, 16),
            n_draft_max=of.randint(1, 16),
            lookup_pattern_min=of.randint(1, 16),
            draft_min_tokens=of.randint(0, 8),
            draft_min_confidence=of.choice((0.0, 0.25, 0.75)),
        ),
        sampling=SamplingSettings(
            temperature=of.choice((0.0, 0.7)),
            top_k=of.choice((0, 40)),
            top_p=of.choice((1.0, 0.9)),
            min_p=of.choice((0.0, 0.05)),
            grammar=of.choice(("", "/models/a.gbnf")),
        ),
    )


def flat(preset: Preset) -> dict[str, object]:
    """The fields of a preset as JSON has them, those of its tables with the table's name."""
    found: dict[str, object] = {}
    for name, value in preset.model_dump(mode="json").items():
        if isinstance(value, dict):
            found |= {f"{name}.{key}": each for key, each in value.items()}
        else:
            found[name] = value
    return found


def changed_fields(configuration: Configuration, format_name: str) -> dict[str, object]:
    """The fields that an export and its import change, with what they are afterwards."""
    request = ExportRequest(configuration, name="there and back")
    exported = FORMATS[format_name].render(request)
    found = read_text(exported.text, name="back", model=str(configuration.model_path)).preset
    before, after = flat(preset_of(configuration, "back")), flat(found)
    changed = {name: after.get(name) for name in before if before[name] != after.get(name)}
    named = " ".join(exported.differences)
    for name in changed:
        assert name.startswith(("draft", "speculation.")) or name.rpartition(".")[2] in named, name
    return changed


@pytest.mark.parametrize("model", MODELS)
def test_plans_and_searches_give_the_recorded_numbers(model: str) -> None:
    recorded = json.loads(PLANS.read_text(encoding="utf-8"))
    for machine in MACHINES:
        key = f"{model}, {machine}"
        assert json.loads(json.dumps(planned(model, machine))) == recorded[f"plan {key}"], key
        assert json.loads(json.dumps(searched(model, machine))) == recorded[f"fit {key}"], key


@pytest.mark.parametrize("format_name", PROGRAMS + WRAPPINGS)
def test_exports_come_back_but_for_the_recorded_fields(format_name: str) -> None:
    recorded = json.loads(EXPORTS.read_text(encoding="utf-8"))
    program = "llama-server" if format_name in WRAPPINGS else format_name
    for number in range(N_DRAWN):
        changed = changed_fields(drawn_configuration(number), format_name)
        assert json.loads(json.dumps(changed)) == recorded[f"{program} {number}"], number


def write_lines(path: Path, found: dict[str, object]) -> None:
    """Write an object with one entry a line."""
    lines = (f"{json.dumps(key)}:{json.dumps(found[key], separators=(',', ':'))}" for key in found)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def record() -> None:
    """Write both files again."""
    plans: dict[str, object] = {}
    for model, machine in product(MODELS, MACHINES):
        plans[f"plan {model}, {machine}"] = planned(model, machine)
        plans[f"fit {model}, {machine}"] = searched(model, machine)
    write_lines(PLANS, plans)
    exports: dict[str, object] = {}
    for program, number in product(PROGRAMS, range(N_DRAWN)):
        exports[f"{program} {number}"] = changed_fields(drawn_configuration(number), program)
    write_lines(EXPORTS, exports)


if __name__ == "__main__":
    record()
