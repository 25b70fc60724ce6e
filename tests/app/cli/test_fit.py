"""`kvchat fit`, as text, as JSON and as an export."""

import re
from pathlib import Path

import pytest

from engine.memory.units import GIB, MIB
from tests.app.cli.conftest import json_of, refusal, text_of


def configuration(found: dict[str, object]) -> dict[str, object]:
    return found["configuration"]


def test_the_largest_context_of_a_model_on_a_card_is_one_command() -> None:
    text = text_of("fit", "qwen2.5-14b", "--goal", "context", "--card", "RTX 3060")
    assert "found for context" in text
    assert "GPU 0 · GeForce RTX 3060" in text
    assert re.search(r"speed at most \d+ tok/s.* 360 GB/s nominal", text), "as in kvchat plan"
    assert re.search(r"kv types +q4_0 +\+[\d,]+ +f16", text)
    assert "llama-server \\\n  --model qwen2.5-14b" in text


def test_json_has_the_configuration_the_devices_the_reasons_and_the_arguments(
    starter_path: Path,
) -> None:
    found = json_of("fit", starter_path, "--goal", "context", "--device", "4GiB", "--ram", "16GiB")
    assert found["goal"] == "context"
    assert configuration(found)["n_ctx"] == 8192
    devices = found["devices"]
    assert [d["free_memory_bytes"] for d in devices] == [4 * GIB, 16 * GIB]
    for device in devices:
        assert device["total_bytes"] == sum(device[name] for name in device["source"])
        assert device["left_bytes"] >= 512 * MIB
    assert {step["setting"] for step in found["steps"]} >= {"layers", "kv types", "context"}
    assert "--ctx-size" in str(found["args"])


def test_the_model_is_named_by_its_file_and_one_token_is_no_plural(starter_path: Path) -> None:
    refused = refusal("fit", starter_path, "--margin", "100GiB")
    assert f": {starter_path.stem} does not fit with 8,192 tokens of" in refused
    assert "context    1 token\n" in text_of("fit", starter_path, "--max-ctx", "1")


def test_an_export_is_printed_alone() -> None:
    text = text_of("fit", "llama-3.1-8b", "--device", "12GiB", "--format", "llama-swap")
    assert "models:" in text
    assert "Why" not in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--card", "RTX 4095"], "did you mean GeForce RTX 4090"),
        (["--device", "0GiB"], "zero bytes"),
        (["--device", "-4GiB"], "is not a size"),
        (["--device", "1GiB", "--ram", "1GiB"], "does not fit"),
        (["--offload", "none", "--device", "4GiB"], "does not fit"),
        (["--kv", "q9"], "is not a cache type"),
        (["--min-context", "9000", "--max-context", "8000"], "limits contradict"),
        (["--no-gpu", "--card", "3090"], "--no-gpu cannot"),
        (["--format", "lm-studioo"], "did you mean lm-studio"),
        (["--margin", "100GiB"], "does not fit"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(options: list[str], reason: str) -> None:
    assert reason in refusal("fit", "llama-3.1-8b", *options)


def test_a_context_beyond_training_comes_with_the_flags_it_needs() -> None:
    text = text_of("fit", "qwen3-8b", "--goal", "context", "--device", "24GiB",
                   "--max-context", 131072)  # fmt: skip
    assert "--rope-scaling yarn" in " ".join(text.split())


def test_the_largest_context_is_what_memory_allows_and_not_what_the_goal_asks() -> None:
    text = text_of("fit", "llama-3.1-8b", "--goal", "balanced", "--device", "24GiB")
    assert "context    32,768 tokens" in text
    assert re.search(r"largest context (?!32,768)[\d,]+", text)


@pytest.mark.parametrize(
    ("model", "cards"),
    [
        pytest.param("qwen3-235b-a22b", ["3x24GiB"], marks=pytest.mark.slow),
        ("glm-4.5-air", ["2x24GiB"]),
        ("gpt-oss-120b", ["24GiB", "12GiB"]),
        ("gpt-oss-120b", ["12GiB", "24GiB"]),
        pytest.param("qwen3-next-80b-a3b", ["2x16GiB"], marks=pytest.mark.slow),
    ],
)
def test_experts_in_ram_leave_no_card_empty(model: str, cards: list[str]) -> None:
    words = [word for card in cards for word in ("--device", card)]
    limits = ("--min-ctx", 16384, "--max-ctx", 16384, "--ram", "256GiB")
    found = json_of("fit", model, "--goal", "speed", *words, *limits)
    devices = found["devices"]
    left = [device["left_bytes"] for device in devices if device["kind"] == "gpu"]
    assert min(left) >= 512 * MIB
    assert max(left) < 3 * GIB, "less than two layers with their experts"
