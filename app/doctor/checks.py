"""Checks of the machine: GPU, terminal, folders, settings and models."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app import paths
from app.config import load_settings
from engine.memory.hardware import find_nvidia_gpus
from engine.memory.units import GIB, format_bytes
from engine.model.library import ModelEntry

Status = Literal["ok", "note", "fail"]
LITTLE_BYTES = 1 << 30
NO_BYTES = 32 << 20
COLUMNS, LINES = 80, 24
GOOD_COLUMNS, GOOD_LINES = 120, 36


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    status: Status
    """`note` works but could be better; `fail` keeps kvchat from working."""
    detail: str
    """What is, with numbers."""
    advice: str | None = None
    """What to change, None when there is nothing."""


def check_gpu(*, has_gpu_build: bool | None) -> Check:
    """Compare the NVIDIA devices with what llama.cpp can use.

    Args:
        has_gpu_build: Whether llama.cpp can put layers on a GPU; None if that is unknown.
    """
    gpus = find_nvidia_gpus()
    if not gpus:
        detail = "no NVIDIA GPU was found: "
        return Check(
            "gpu",
            "ok",
            detail + ("another GPU may be used" if has_gpu_build else "the CPU is used"),
        )
    detail = ", ".join(
        f"{gpu.name} ({format_bytes(gpu.free_bytes)} of {format_bytes(gpu.total_bytes)} free)"
        for gpu in gpus
    )
    if has_gpu_build is False:
        return Check(
            "gpu",
            "note",
            f"{detail}; llama.cpp was built for the CPU only",
            "build it again where the CUDA toolkit (nvcc) is on the path: "
            "CMAKE_ARGS=-DGGML_CUDA=ON pip install --force-reinstall --no-cache-dir "
            "--no-binary llama-cpp-python llama-cpp-python",
        )
    return Check("gpu", "ok", detail)


def check_folders(entries: Sequence[ModelEntry]) -> Iterator[Check]:
    """Check folders, disk space, settings, and the models that were found."""
    yield _folders()
    yield _space(paths.data_dir())
    yield _settings()
    yield _models(entries)


def _folders() -> Check:
    folders = {
        "settings": paths.config_dir(),
        "chats and models": paths.data_dir(),
        "logs": paths.state_dir(),
        "cache": paths.cache_dir(),
    }
    closed = [f"{what} in {folder}" for what, folder in folders.items() if not _can_write(folder)]
    if closed:
        return Check(
            "folders",
            "fail",
            f"cannot be written: {', '.join(closed)}",
            "give yourself the right to write there, or move them with XDG_CONFIG_HOME, "
            "XDG_DATA_HOME, XDG_STATE_HOME and XDG_CACHE_HOME",
        )
    return Check("folders", "ok", "all can be written; `kvchat where` lists them")


def _space(folder: Path) -> Check:
    free = shutil.disk_usage(_nearest_existing(folder)).free
    detail = f"{free / GIB:.1f} GiB free for {folder}"
    if free < NO_BYTES:
        return Check("disk", "fail", detail, "free some space, or chats cannot be saved")
    if free < LITTLE_BYTES:
        return Check("disk", "note", detail, "free some space before you fetch models")
    return Check("disk", "ok", detail)


def _settings() -> Check:
    problem = load_settings().problem
    if problem is not None:
        return Check("settings", "note", problem, "correct the file; defaults stand in until then")
    path = paths.settings_path()
    return Check("settings", "ok", str(path) if path.exists() else "no file, all defaults")


def _models(entries: Sequence[ModelEntry]) -> Check:
    broken = [entry for entry in entries if entry.problem is not None]
    detail = f"{len(entries) - len(broken)} found"
    if not entries:
        return Check(
            "models", "note", "none found", "`kvchat models install-starter` fetches a small one"
        )
    if broken:
        names = ", ".join(f"{entry.name} ({entry.problem})" for entry in broken)
        return Check("models", "note", f"{detail}, broken: {names}", "fetch those again")
    return Check("models", "ok", detail)


def _can_write(folder: Path) -> bool:
    return os.access(_nearest_existing(folder), os.W_OK | os.X_OK)


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def check_terminal() -> Iterator[Check]:
    """Check size, colours and characters of the terminal that this runs in."""
    yield _size(is_terminal=all(s.isatty() for s in (sys.stdin, sys.stdout, sys.stderr)))
    yield check_colors(os.environ)
    yield check_characters(sys.stdout.encoding)


def check_colors(environment: Mapping[str, str]) -> Check:
    """Check how many colours the terminal claims to have."""
    term = environment.get("TERM", "")
    if "NO_COLOR" in environment:
        return Check("colours", "note", "NO_COLOR is set: the screen is black and white", None)
    if environment.get("COLORTERM", "").lower() in ("truecolor", "24bit") or "direct" in term:
        return Check("colours", "ok", f"16 million (TERM={term})")
    if "256color" in term:
        return Check("colours", "ok", f"256 (TERM={term})")
    return Check(
        "colours",
        "note",
        f"TERM={term or 'not set'} promises few colours",
        "set TERM=xterm-256color, or tmux-256color in tmux, if your terminal has them",
    )


def check_characters(encoding: str) -> Check:
    """Check whether box and bar characters can be written."""
    if encoding.lower().replace("-", "") == "utf8":
        return Check("characters", "ok", "UTF-8")
    return Check(
        "characters",
        "fail",
        f"the encoding is {encoding}: frames and bars cannot be written",
        "set LANG to a UTF-8 locale such as C.UTF-8",
    )


def _size(*, is_terminal: bool) -> Check:
    if not is_terminal:
        return Check(
            "terminal",
            "note",
            "this is not run in a terminal",
            "the chat needs one; `kvchat run` works without",
        )
    columns, lines = shutil.get_terminal_size()
    detail = f"{columns} columns, {lines} lines"
    if columns < COLUMNS or lines < LINES:
        advice = f"make it {COLUMNS}x{LINES} at least, better {GOOD_COLUMNS}x{GOOD_LINES}"
        return Check("terminal", "note", detail, advice)
    return Check("terminal", "ok", detail)
