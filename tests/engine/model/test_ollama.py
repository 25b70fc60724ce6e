"""Models of Ollama's store have the names of its manifests, whatever lies there."""

import json
from pathlib import Path

import pytest

from engine.model import ollama
from engine.model.identity import ModelKind
from engine.model.library import find_model, read_headers, scan
from engine.model.ollama import model_name, stored_models
from tests.support.gguf_files import tiny_gguf

MODEL, PROJECTOR = "a" * 64, "b" * 64
LIBRARY = "registry.ollama.ai/library"


def manifest(store: Path, name: str, layers: object) -> Path:
    path = store / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return path


def layer(digest: str, kind: str = "model") -> dict[str, str]:
    return {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one model that sees."""
    tiny_gguf(tmp_path / "blobs" / f"sha256-{MODEL}")
    tiny_gguf(tmp_path / "blobs" / f"sha256-{PROJECTOR}", "clip")
    seeing = [layer(f"sha256:{MODEL}"), layer(f"sha256:{PROJECTOR}", "projector")]
    manifest(tmp_path, f"{LIBRARY}/gemma3/4b", seeing)
    return tmp_path


def test_a_blob_has_the_name_of_its_manifest(store: Path) -> None:
    (entry,) = scan([store])
    assert (entry.name, entry.path.name) == ("gemma3:4b", f"sha256-{MODEL}")
    assert find_model("gemma3:4b", [store]) == entry.path
    assert find_model("gemma3", [store]) == entry.path
    assert model_name(entry.path) == "gemma3:4b"
    assert model_name(Path("/somewhere/model.Q4_K_M.gguf")) == "model.Q4_K_M"


def test_two_names_of_one_file_are_one_model(store: Path) -> None:
    manifest(store, f"{LIBRARY}/gemma3/latest", [layer(f"sha256:{MODEL}")])
    assert [name for _, name in stored_models(store)] == ["gemma3:4b", "gemma3:4b mmproj"]


@pytest.mark.parametrize(
    "layers",
    [
        None,
        7,
        ["text", None, {}],
        [layer("sha256:../../../etc/passwd")],
        [layer(f"sha256:{'d' * 64}")],
        [layer(MODEL)],
        [{"mediaType": ["application/vnd.ollama.image.model"], "digest": {}}],
    ],
)
def test_a_manifest_that_names_no_file_of_the_store_names_nothing(
    tmp_path: Path, layers: object
) -> None:
    (tmp_path / "blobs").mkdir()
    manifest(tmp_path, f"{LIBRARY}/x/y", layers)
    assert list(stored_models(tmp_path)) == []


def test_a_manifest_that_is_no_json_or_too_large_names_nothing(store: Path) -> None:
    (store / "manifests" / LIBRARY / "gemma3" / "broken").write_text("{")
    large = json.dumps({"layers": [layer(f"sha256:{MODEL}")], "x": "x" * ollama.MANIFEST_BYTES})
    (store / "manifests" / LIBRARY / "gemma3" / "1b").write_text(large)
    assert [name for _, name in stored_models(store)] == ["gemma3:4b", "gemma3:4b mmproj"]


def test_a_store_that_leads_back_to_itself_ends(store: Path) -> None:
    (store / "manifests" / "loop").symlink_to(store / "manifests", target_is_directory=True)
    assert len(list(stored_models(store))) == 2


def test_a_model_that_was_pulled_later_gets_its_name(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(ollama.time, "monotonic", lambda: now)
    path = store / "blobs" / f"sha256-{'d' * 64}"
    assert model_name(path) == path.name
    tiny_gguf(path)
    manifest(store, f"{LIBRARY}/later/latest", [layer(f"sha256:{'d' * 64}")])
    now += ollama.NAMES_S
    assert model_name(path) == "later:latest"


def test_a_projector_is_found_as_that(store: Path) -> None:
    found = {entry.name: entry.kind for entry in read_headers([store])}
    assert found == {"gemma3:4b": ModelKind.MODEL, "gemma3:4b mmproj": ModelKind.PROJECTOR}


def test_another_host_and_owner_are_part_of_the_name(store: Path) -> None:
    digest = "c" * 64
    tiny_gguf(store / "blobs" / f"sha256-{digest}", "qwen2")
    manifest(store, "hf.co/bartowski/Qwen-GGUF/Q4_K_M", [layer(f"sha256:{digest}")])
    assert "hf.co/bartowski/Qwen-GGUF:Q4_K_M" in [entry.name for entry in scan([store])]


def test_manifests_are_read_up_to_a_limit(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama, "MAX_MANIFESTS", 3)
    for number in range(9):
        manifest(store, f"{LIBRARY}/m{number}/latest", [layer(f"sha256:{MODEL}")])
    assert len(list(stored_models(store))) <= 3
