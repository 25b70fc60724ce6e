"""`kvchat plan`, as text and as JSON."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from app.cli.main import run
from engine.memory.terms import TermKind
from engine.memory.units import GIB, MIB
from tests.app.cli.conftest import json_of, refusal, text_of
from tests.support.made_models import made_model

TERMS = tuple(f"{kind}_bytes" for kind in TermKind)


def plan(*arguments: object) -> Any:
    return json_of("plan", *arguments)


def plan_text(*arguments: object) -> str:
    return text_of("plan", *arguments)


def test_json_reports_every_term_of_every_device_with_its_source(starter_path: Path) -> None:
    found = plan(starter_path, "--vram", "8GiB")
    assert found["model"] == str(starter_path)
    assert (found["architecture"], found["file_type"]) == ("llama", "Q4_1")
    assert (found["target"], found["fits"]) == ("kvchat", True)
    devices_found = found["devices"]
    assert [device["kind"] for device in devices_found] == ["gpu", "cpu"]
    for device in devices_found:
        assert device["total_bytes"] == sum(device[name] for name in TERMS)
        assert device["left_bytes"] == device["free_memory_bytes"] - device["total_bytes"]
        assert set(device["source"]) == set(TERMS)
        assert set(device["source"].values()) <= {"exact", "measured", "estimated"}
    assert devices_found[0]["free_memory_bytes"] == 8 * GIB


def test_a_kind_of_torch_s_cache_is_planned_by_its_own_bytes(starter_path: Path) -> None:
    asked = (starter_path, "--backend", "torch", "--ctx", 4096, "--ram", "8GiB", "--set")
    n_values = 30 * 3 * 2 * 64
    for kind, nbytes in (("f32", 4), ("kivi4", 5 / 8), ("paged", 2)):
        found = plan(*asked, f"kv_cache={kind}")
        [cpu] = found["devices"]
        assert cpu["kv_bytes"] == pytest.approx(4096 * n_values * nbytes, rel=0.15)
        assert cpu["weights_bytes"] > 134_000_000 * 2
        assert found["quality"]["basis"] == "unknown"
    text = plan_text(*asked, "kv_cache=paged")
    assert f"{n_values * 2:,} bytes per token" in text
    assert "\npaged " in text
    assert "\nq8_0 " not in text
    assert "no cache type 'turbo'" in refusal("plan", *map(str, asked), "kv_cache=turbo")


def test_json_has_ranges_table_and_alternatives(starter_path: Path) -> None:
    found = plan(starter_path, "--vram", "8GiB", "--ctx", 2048)
    assert found["verdict"] == "fits"
    for device in found["devices"]:
        assert set(device["range"]) == set(TERMS)
        for name, (low, high) in device["range"].items():
            assert low <= device[name] <= high
            assert (low < high) == (device["source"][name] == "estimated")
    table = found["table"]
    cells = [cell for row in table["rows"] for cell in row["cells"]]
    [own] = [cell for cell in cells if cell["is_plan"]]
    total = sum(device["total_bytes"] for device in found["devices"])
    assert own == {"total_bytes": total, "verdict": "fits", "is_plan": True}
    assert all(len(row["cells"]) == len(table["n_ctx"]) for row in table["rows"])
    alternatives = found["alternatives"]
    assert {"change": "q8_0 K and V", "verdict": "fits"}.items() <= alternatives[0].items()
    assert alternatives[0]["delta_bytes"] < 0


def test_the_largest_context_fits_and_the_next_does_not(starter_path: Path) -> None:
    base = (starter_path, "--vram", "1100MiB", "--gpu-layers", "all", "--type-k", "f32")
    largest = plan(*base, "--margin", "500MiB")["max_n_ctx"]
    assert isinstance(largest, int)
    assert 256 < largest < 8192
    assert plan(*base, "--margin", "500MiB", "--ctx", largest)["fits"] is True
    assert plan(*base, "--margin", "500MiB", "--ctx", largest + 256)["fits"] is False


def test_a_model_that_fits_with_no_context_is_a_plan_too(starter_path: Path) -> None:
    base = (starter_path, "--vram", "100MiB", "--gpu-layers", "all")
    found = plan(*base)
    assert (found["fits"], found["max_n_ctx"]) == (False, None)
    text = plan_text(*base)
    assert "✗ does not fit · GPU 0 lacks" in text
    assert "not even 256 tokens" in text


def test_a_draft_model_costs_and_drafts(starter_path: Path) -> None:
    alone = plan(starter_path, "--ctx", 2048)
    pair = plan(starter_path, "--ctx", 2048, "--draft", starter_path)
    [one] = alone["devices"]
    [two] = pair["devices"]
    assert two["weights_bytes"] == one["weights_bytes"]
    assert one["draft_bytes"] == 0
    assert two["draft_bytes"] > one["weights_bytes"] + one["kv_bytes"]
    assert "--model-draft" in pair["args"]


def test_the_dry_run_replaces_formulas(starter_path: Path) -> None:
    [device] = plan(starter_path, "--ctx", 1024, "--dry-run")["devices"]
    assert device["source"]["compute_bytes"] == "measured"
    assert device["source"]["kv_bytes"] == "exact"


def test_text_names_sources_by_sign_and_word_and_gives_a_command_to_paste(
    starter_path: Path,
) -> None:
    text = plan_text(starter_path, "--ctx", 2048)
    for part in ("= exact", "~ estimate", "tensor table", "largest context 8,192", "[✓"):
        assert part in text
    command = text[text.index("llama-server \\") :].replace("\\\n", "")
    assert shlex.split(command)[:3] == ["llama-server", "--model", str(starter_path)]
    assert max(map(len, text.splitlines())) <= 100


def test_a_plan_has_only_ascii_characters_if_the_settings_ask_for_them(starter_path: Path) -> None:
    text_of("settings", "ui.graph_symbols", "ascii")
    assert plan_text(starter_path, "--ctx", 2048).isascii()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--ctx", "0"], "--ctx"),
        (["--ctx", "many"], "'many'"),
        (["--vram", "0"], "zero bytes"),
        (["--vram", "lots"], "'lots'"),
        (["--gpu-layers", "-4"], "-4"),
        (["--type-k", "q9"], "q9"),
        (["--type-v", "q8_0", "--flash-attention", "off"], "flash attention"),
        (["--batch", "64", "--ubatch", "128"], "128"),
        (["--preset", "nix"], "'nix'"),
        (["--preset", __file__], ".toml"),
        (["--slots", "many"], "1 to 256"),
        (["--draft", "nowhere.gguf"], "nowhere.gguf"),
        (["--dry-run", "--vram", "8GiB"], "leave out"),
    ],
)
def test_bad_input_is_a_sentence_and_not_a_plan(
    options: list[str], part: str, starter_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(starter_path), *options]) in (1, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert part in shown.err
    assert "Traceback" not in shown.err


def test_a_card_is_planned_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan("llama-3.1-8b", "--device", "8GiB", "--card", "4090")
    devices_found = found["devices"]
    assert [device["name"] for device in devices_found[:2]] == [
        "GPU 0",
        "GPU 1 · GeForce RTX 4090",
    ]
    assert devices_found[1]["total_memory_bytes"] == 24564 * MIB
    assert run(["plan", "llama-3.1-8b", "--card", "RTX 4095"]) != 0
    assert "did you mean GeForce RTX 4090" in capsys.readouterr().err


SHORT = [
    ("llama-3.3-70b", "RTX 4070", "21GiB"),
    ("qwen3-32b", "RTX 4070", "7GiB"),
    ("qwen3-30b-a3b", "RTX 2060", "4GiB"),
    ("llama-3.1-8b:F16", "RTX 3050", "2GiB"),
]


@pytest.mark.parametrize(("model", "card", "ram"), SHORT)
@pytest.mark.parametrize("goal", [None, "speed"])
def test_where_nothing_fits_the_ram_that_is_lacking_is_enough(
    model: str, card: str, ram: str, goal: str | None,
    tmp_path: Path,
) -> None:  # fmt: skip
    machine = ["--card", card, "--ram"]
    if goal is not None:
        (tmp_path / "goal.toml").write_text(f'name = "goal"\ngoal = "{goal}"\nn_ctx = 512\n')
        machine = ["--preset", str(tmp_path / "goal.toml"), *machine]
    found = plan(model, *machine, ram)
    gpu, cpu = found["devices"]
    assert (found["verdict"], gpu["verdict"], cpu["verdict"]) == ("no", "fits", "no")
    assert gpu["left_bytes"] < 0.2 * gpu["free_memory_bytes"]
    needed = cpu["free_memory_bytes"] - cpu["left_bytes"] + found["margin_bytes"]
    assert plan(model, *machine, f"{needed}B")["fits"]


def test_a_context_that_fits_nowhere_leaves_no_card_overfull(tmp_path: Path) -> None:
    (tmp_path / "goal.toml").write_text('name = "goal"\ngoal = "balanced"\n')
    words = ("llama-3.1-8b", "--preset", tmp_path / "goal.toml", "--vram", "8GiB", "--ram", "4GiB")
    for n_ctx in (500_000, 1_000_000):
        gpu, cpu = plan(*words, "--ctx", n_ctx)["devices"]
        assert (gpu["verdict"], cpu["verdict"]) == ("fits", "no"), n_ctx


def test_a_model_on_the_cards_alone_is_rated_by_them() -> None:
    text = plan_text("qwen2.5-0.5b", "--card", "RTX 3090", "--card", "RTX 3090",
                   "--ram", "21GiB")  # fmt: skip
    verdict = next(line for line in text.splitlines() if "✓ fits" in line)
    assert "RTX 3090" in verdict
    assert "CPU" not in verdict


@pytest.mark.parametrize("n_trained", [200, 1000, 1024])
def test_the_longest_context_is_that_of_training(n_trained: int, tmp_path: Path) -> None:
    keys = {
        "block_count": 2, "context_length": n_trained, "embedding_length": 64,
        "feed_forward_length": 128, "attention.head_count": 2,
    }  # fmt: skip
    made_model(tmp_path / "model.gguf", "llama", keys)
    for name, rules in {"max": 'n_ctx = "max"', "auto": "", "goal": 'goal = "context"'}.items():
        (tmp_path / f"{name}.toml").write_text(f'name = "{name}"\n{rules}\n')
        words = (tmp_path / "model.gguf", "--preset", tmp_path / f"{name}.toml", "--ram", "8GiB")
        found = plan(*words)
        assert arguments_of(found)["--ctx-size"] == str(n_trained), name
        assert found["max_n_ctx"] == n_trained


def arguments_of(found: dict[str, object]) -> dict[str, str]:
    """The arguments of a plan by their flags."""
    words = found["args"]
    return dict(zip(words[::2], words[1::2], strict=False))
