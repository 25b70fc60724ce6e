"""Exports are written without loss of what was there."""

import json
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.presets.programs.base import ExportError, ExportRequest
from engine.presets.programs.formats import FORMATS, install, write


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
    with pytest.raises(ExportError, match=r"no folder .*/nonexist: make it"):
        write(FORMATS["shell"].render(request(Path("/m.gguf"))), tmp_path / "nonexist" / "x.sh")
    assert not any(tmp_path.iterdir())
