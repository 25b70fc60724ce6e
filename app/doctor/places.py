"""Whether kvchat's files can be written, and what it found in them."""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from app import locations
from app.doctor.check import Check
from app.settings import load_settings
from engine.model.library import ModelEntry

LITTLE_BYTES = 1 << 30
NO_BYTES = 32 << 20
GIB = 1 << 30


def check_places(entries: Sequence[ModelEntry]) -> Iterator[Check]:
    """Check folders, disk space, settings, and the models that were found."""
    yield _folders()
    yield _space(locations.data_dir())
    yield _settings()
    yield _models(entries)


def _folders() -> Check:
    folders = {
        "settings": locations.config_dir(),
        "chats and models": locations.data_dir(),
        "logs": locations.state_dir(),
        "cache": locations.cache_dir(),
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
    path = locations.settings_path()
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
