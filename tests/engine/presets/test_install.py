"""Exports are written without loss of what was there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.model.architecture import read_model
from engine.presets.export import ExportError, ExportRequest, install, write
from engine.presets.formats import FORMATS
from engine.presets.lm_studio import install_path_of, merge


def request(path: Path) -> ExportRequest:
    return ExportRequest(Configuration(path, 512), name="m")


def test_nothing_is_written_where_a_companion_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "m.ollama.env").write_text("mine")
    with pytest.raises(ExportError, match=r"m\.ollama\.env"):
        write(FORMATS["ollama"].render(request(Path("/m.gguf"))), tmp_path / "Modelfile")
    assert not (tmp_path / "Modelfile").exists()


def test_a_second_backup_does_not_replace_the_first(tmp_path: Path) -> None:
    model = tmp_path / ".lmstudio" / "models" / "pub" / "repo" / "m.gguf"
    format_ = FORMATS["lm-studio"]
    exported = format_.render(request(model))
    place, no_backup = install(exported, format_)
    assert no_backup is None
    assert not place.read_bytes().startswith(b"\xef\xbb\xbf")
    place.write_text('{"preset": "one"}')
    place.chmod(0o600)
    _, first = install(exported, format_)
    _, second = install(exported, format_)
    assert {each.stat().st_mode & 0o777 for each in place.parent.iterdir()} == {0o600}
    assert first is not None
    assert second not in (None, first)
    assert json.loads(first.read_text()) == {"preset": "one"}
    assert json.loads(place.read_text())["preset"] == "one"


def test_a_broken_file_of_lm_studio_stays_and_no_backup_is_made(tmp_path: Path) -> None:
    model = tmp_path / ".lmstudio" / "models" / "pub" / "repo" / "m.gguf"
    format_ = FORMATS["lm-studio"]
    exported = format_.render(request(model))
    place, _ = install(exported, format_)
    place.write_text("{broken")
    with pytest.raises(ExportError, match="not valid JSON"):
        install(exported, format_)
    assert [each.name for each in place.parent.iterdir()] == [place.name]


def test_a_mistyped_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"/nonexist does not exist"):
        write(FORMATS["shell"].render(request(Path("/m.gguf"))), tmp_path / "nonexist" / "x.sh")
    assert not any(tmp_path.iterdir())


def test_lm_studios_path_follows_the_models_and_the_newer_folder(tmp_path: Path) -> None:
    home = tmp_path / ".lmstudio"
    model = home / "models" / "pub" / "repo" / "m.gguf"
    below = ".internal/user-concrete-model-default-config/pub/repo/m.gguf.json"
    assert install_path_of(model) == home / below
    assert install_path_of(Path("/models/m.gguf")) is None
    (home / "apps" / "bionic" / ".internal").mkdir(parents=True)
    assert install_path_of(model) == home / "apps" / "bionic" / below


def test_fields_of_lm_studio_that_are_not_exported_stay() -> None:
    exported = FORMATS["lm-studio"].render(request(Path("/m.gguf"))).text
    others = [{"key": "llm.load.seed", "value": 3}, {"key": "llm.load.contextLength", "value": 1}]
    old = {"preset": "mine", "load": {"note": 1, "fields": others}, "extra": [1]}
    merged = json.loads(merge("\ufeff" + json.dumps(old), exported))
    values = {each["key"]: each["value"] for each in merged["load"]["fields"]}
    assert (values["llm.load.seed"], values["llm.load.contextLength"]) == (3, 512)
    assert (merged["preset"], merged["extra"], merged["load"]["note"]) == ("mine", [1], 1)
    assert merged["operation"]["fields"]


@pytest.mark.parametrize("broken", ["", "{", "[]", "3"])
def test_a_broken_file_of_lm_studio_is_not_merged(broken: str) -> None:
    with pytest.raises(ExportError, match="the existing file"):
        merge(broken, "{}")


def test_layers_of_lm_studio_are_shares_of_those_in_the_file(starter_path: Path) -> None:
    model = read_model(starter_path)
    n_blocks = model.architecture.n_blocks
    for count, share in ((0, "off"), (n_blocks // 2, 0.5), (n_blocks + 1, "max"), (-1, "max")):
        configuration = Configuration(starter_path, 512, n_gpu_layers=count)
        text = FORMATS["lm-studio"].render(ExportRequest(configuration, model)).text
        fields = {each["key"]: each["value"] for each in json.loads(text)["load"]["fields"]}
        assert fields["llm.load.llama.acceleration.offloadRatio"] == share


def test_a_container_asks_for_a_gpu_if_the_plan_uses_one_and_mounts_targets_of_links(
    tmp_path: Path,
) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "abc").touch()
    link = tmp_path / "m.gguf"
    link.symlink_to(tmp_path / "blobs" / "abc")
    with_gpu = FORMATS["compose"].render(request(link)).text
    without = FORMATS["compose"].render(replace(request(link), uses_gpu=False)).text
    assert f'source: "{tmp_path / "blobs"}"' in with_gpu
    assert "server-cuda" in with_gpu
    assert "nvidia" not in without
    assert "llama.cpp:server\n" in without
