"""What the hub offers with a verdict each; favourites; the files that go with a model."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app import paths
from app.cli.main import run
from app.library import (
    favourites,
    maker_of,
    mark_favourite,
    read_offer,
    removal_of,
    repository_of,
    verdict_text,
)
from engine.errors import ModelFileError
from engine.memory.bandwidth import Bandwidth, Bandwidths
from engine.memory.hardware import Device
from engine.memory.units import MIB
from engine.model.hub import DownloadError, HubName
from engine.planning.models import ModelOption
from engine.planning.planner import Planner
from engine.planning.verdict import FitVerdict
from tests.app.cli.conftest import json_of, refusal, text_of
from tests.support.drafting_models import drafting_model
from tests.support.filled_projectors import filled_projector
from tests.support.hub_server import Hub, serving_hub

REPO = "maker/Tiny-GGUF"
SMALL = (Device("CPU", "cpu", 700 * MIB, 700 * MIB),)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    data = drafting_model(tmp_path / "made.gguf", 1).read_bytes()
    with serving_hub() as hub:
        hub.files[REPO] = dict.fromkeys(
            ("Tiny.Q4_K_M.gguf", "Tiny.Q8_0.gguf", "Tiny.F16.gguf"), data
        )
        hub.sizes = {"Tiny.Q8_0.gguf": 100 * MIB, "Tiny.F16.gguf": 300 * MIB}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


def planner() -> Planner:
    return Planner(here=SMALL, bandwidths=lambda _: Bandwidth(1e9, "measured here"))


def test_a_plan_of_an_unknown_repository_speaks_of_no_download(hub: Hub, home: Path) -> None:
    assert "The remote model cannot be read: " in refusal("plan", "hf:owner/none")


def test_files_of_a_repository_are_rated_by_one_header(hub: Hub) -> None:
    offer = read_offer(HubName(REPO), planner())
    verdicts = {option.name: option.verdict for option in offer.options}
    assert verdicts["Tiny.Q4_K_M"] is FitVerdict.FITS
    assert verdicts["Tiny.F16"] is not FitVerdict.FITS
    asked = sum(1 for each in hub.ranges if each)
    assert asked <= 3, "one header, not three"
    assert offer.best.name == "Tiny.Q4_K_M"
    bounds = [option.bound.tps for option in offer.options if option.bound]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 5 * bounds[2]


def test_a_quantisation_names_its_file_and_none_or_two_are_listed(hub: Hub) -> None:
    offer = read_offer(HubName(REPO), planner())
    assert offer.named("q8_0").name == "Tiny.Q8_0"
    assert offer.named("Tiny.F16.gguf").name == "Tiny.F16"
    with pytest.raises(
        ModelFileError, match=r"has no file matching 'Q2_K': specify one of .*Tiny\.F16"
    ):
        offer.named("Q2_K")
    with pytest.raises(ModelFileError, match="has several files matching 'Tiny'"):
        offer.named("Tiny")


def test_a_name_of_the_catalogue_means_its_makers_repository(hub: Hub) -> None:
    hub.files |= {"Qwen/Qwen3-8B-GGUF": {}, "other/qwen3-8b-GGUF": {}}
    hub.downloads = {"other/qwen3-8b-GGUF": 10_000}
    assert repository_of("qwen3-8b").repo == "Qwen/Qwen3-8B-GGUF"
    found = repository_of("qwen3-8b:Q5_K_M")
    assert (found.repo, found.quantization) == ("Qwen/Qwen3-8B-GGUF", "Q5_K_M")
    with pytest.raises(ModelFileError, match=r"no GGUF repository for llama-3\.1-8b"):
        repository_of("llama-3.1-8b")
    with pytest.raises(
        DownloadError, match=r"'hf:bad' is not a Hugging Face repository.* hf:owner/repository"
    ):
        repository_of("hf:bad")
    assert maker_of("config.json of Qwen/Qwen3-8B") == "Qwen"
    assert maker_of("a paper") == ""


def test_get_reports_the_verdict_downloads_and_prints_the_place(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["models", "get", f"hf:{REPO}"]) == 2
    assert "cannot ask without a terminal: --yes downloads it" in capsys.readouterr().err
    assert run(["models", "get", f"hf:{REPO}:Q4_K_M", "--yes"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "fits with" in out[1]
    path = Path(out[-1])
    assert path.read_bytes() == hub.files[REPO]["Tiny.Q4_K_M.gguf"]
    assert run(["models", "where", "Tiny.Q4_K_M"]) == 0
    assert capsys.readouterr().out.strip() == str(path.parent)
    assert run(["models", "rm", "Tiny.Q4_K_M"]) == 2
    assert path.exists()
    assert run(["models", "rm", "Tiny.Q4_K_M", "--yes"]) == 0
    assert not path.exists()


def test_a_file_without_a_checksum_is_reported_to_be_one(
    hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.digests["Tiny.Q4_K_M.gguf"] = None
    assert run(["models", "get", f"hf:{REPO}:Q4_K_M", "--yes"]) == 0
    assert "no checksum" in capsys.readouterr().err


def test_a_plan_of_a_repository_lists_its_files(
    hub: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.memory.bandwidth._is_busy", lambda: False)
    monkeypatch.setattr("app.planning.user_bandwidths", lambda: Bandwidths(None))
    out = text_of("plan", f"hf:{REPO}")
    assert [word in out for word in ("Tiny.Q4_K_M", "Tiny.Q8_0", "Tiny.F16", "tok/s")] == [True] * 4
    found = json_of("plan", f"hf:{REPO}")
    assert [each["name"] for each in found] == ["Tiny.Q4_K_M", "Tiny.Q8_0", "Tiny.F16"]
    assert found[0]["max_n_ctx"] > 0


@pytest.mark.parametrize(
    "words",
    ["--slots 8", "--kv q4_0", "--margin 8GiB", "--ctx 512", "--target llama-server", "--ubatch 64",
     "--preset low-memory", "--ram 64GiB", "--vram 8GiB"],
)  # fmt: skip
def test_options_count_in_a_plan_of_a_repository(
    words: str, hub: Hub, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for options in ([], words.split()):
        assert run(["plan", f"hf:{REPO}", "--json", "--ram", "8GiB", *options]) == 0
        found = json.loads(capsys.readouterr().out)
        shown.append(
            [(each["needed_bytes"], each["verdict"], each["free_bytes"]) for each in found]
        )
    assert shown[0] != shown[1]


@pytest.mark.parametrize("words", ["--dry-run", "--gpu-layers 4", "--cpu-moe", "--mtp 2"])
def test_options_of_one_file_are_refused_for_a_repository(words: str, hub: Hub, home: Path) -> None:
    assert words.split()[0] in refusal("plan", f"hf:{REPO}", *words.split(), code=2)


def test_favourites_come_first_and_are_saved(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, name in enumerate(("aa", "bb", "cc")):
        drafting_model(home / "models" / f"{name}.gguf", number)
    assert run(["models", "favourite", "cc"]) == 0
    capsys.readouterr()
    run(["models", "list", "--json"])
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == ["cc", "aa", "bb"]
    assert run(["models", "favourite", "cc", "--off"]) == 0
    assert favourites() == frozenset()
    paths.favourites_dir().rmdir()
    paths.favourites_dir().write_text("no folder")
    assert favourites() == frozenset()
    with pytest.raises(ModelFileError, match="the favourite is not saved"):
        mark_favourite("a", is_favourite=True)


def test_all_parts_of_a_split_model_go(tmp_path: Path) -> None:
    parts = [tmp_path / f"x-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    for part in parts[:2]:
        part.write_bytes(b"12345")
    found = removal_of(parts[0])
    assert (set(found.files), found.nbytes) == (set(parts[:2]), 10)
    assert "2 files of 10 B" in found.question
    found.run()
    assert not any(part.exists() for part in parts)
    with pytest.raises(ModelFileError, match="cannot be removed"):
        replace(found, files=(tmp_path,)).run()


def test_of_hugging_faces_cache_link_and_content_go_and_of_another_link_only_it(
    tmp_path: Path,
) -> None:
    blob = tmp_path / "models--a--b" / "blobs" / "0123"
    link = tmp_path / "models--a--b" / "snapshots" / "main" / "m.gguf"
    for path in (blob, link):
        path.parent.mkdir(parents=True)
    blob.write_bytes(b"12345")
    link.symlink_to(Path("../../blobs/0123"))
    other = tmp_path / "mine.gguf"
    other.symlink_to(blob)
    assert removal_of(other).files == (other,)
    found = removal_of(link)
    assert (found.files, found.nbytes) == ((link, blob), 5)
    found.run()
    assert not blob.exists()


def test_what_belongs_to_ollama_is_left_to_it(tmp_path: Path) -> None:
    store = tmp_path
    blob = store / "blobs" / f"sha256-{'a' * 64}"
    blob.parent.mkdir()
    blob.write_bytes(b"x")
    manifest = store / "manifests" / "registry.ollama.ai" / "library" / "qwen3" / "8b"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{'a' * 64}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    with pytest.raises(ModelFileError, match="with `ollama rm qwen3:8b`"):
        removal_of(blob)
    assert blob.exists()


def test_a_projector_is_named_after_its_model_and_lands_beside_it(
    hub: Hub, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = filled_projector(tmp_path / "p.gguf").read_bytes()
    hub.files[REPO]["mmproj-Tiny.gguf"] = data
    assert run(["models", "get", f"hf:{REPO}:Q4_K_M", "--yes"]) == 0
    message = capsys.readouterr()
    command = f"kvchat models get hf:{REPO}/mmproj-Tiny.gguf"
    assert f"`{command}`" in message.err
    assert run([*command.split()[1:], "--yes"]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path == Path(message.out.splitlines()[-1]).with_name("mmproj-Tiny.gguf")
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"problem": "it is truncated"}, "it is truncated"),
        ({"verdict": None}, "not computed"),
        ({}, "fits with 8,192 tokens of context"),
        ({"max_n_ctx": 9000}, "fits with 8,192 tokens of context; at most 9,000 tokens fit"),
        ({"max_n_ctx": 8192}, "fits with 8,192 tokens of context"),
        ({"verdict": FitVerdict.TIGHT}, "barely fits with 8,192 tokens of context"),
        ({"verdict": FitVerdict.NO}, "does not fit with 8,192 tokens of context"),
        ({"verdict": FitVerdict.NO, "spills": True},
         "fits partly on the GPU and partly in RAM, with 8,192 tokens of context"),
    ],
)  # fmt: skip
def test_a_verdict_in_words(changes: dict[str, Any], words: str) -> None:
    fits = ModelOption("a", "a", (), verdict=FitVerdict.FITS, n_ctx=8192)
    assert verdict_text(replace(fits, **changes)) == words
