"""Files that a killed process had begun to write."""

import os
from pathlib import Path

import psutil

from engine.files import DRAFT_SUFFIX, drafting_process


def remove_leftovers(folder: Path) -> None:
    """Remove the drafts of processes that are gone, and leave those of living ones.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as found:
        drafts = [Path(entry.path) for entry in found if entry.name.endswith(DRAFT_SUFFIX)]
    for draft in drafts:
        process = drafting_process(draft)
        if process is not None and not _is_writing(process, draft):
            draft.unlink(missing_ok=True)


def _is_writing(process: int, draft: Path) -> bool:
    """Whether a process may be writing a draft: it lives, and began before the draft did."""
    try:
        began = psutil.Process(process).create_time()
        return began <= draft.stat().st_mtime + 1.0
    except (psutil.NoSuchProcess, FileNotFoundError):
        return False
    except psutil.AccessDenied:
        return True
