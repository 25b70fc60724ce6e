"""Small and read-only disks, where the system lets us mount them."""

import contextlib
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path


def _mount(*arguments: str) -> bool:
    try:
        done = subprocess.run(("mount", *arguments), capture_output=True, check=False)
    except OSError:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def small_disk(place: Path, nbytes: int) -> Iterator[bool]:
    """Mount a disk of so many bytes; gives False where that is not allowed."""
    place.mkdir(parents=True, exist_ok=True)
    is_mounted = _mount("-t", "tmpfs", "-o", f"size={nbytes}", "tmpfs", str(place))
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(("umount", "-l", str(place)), check=True)


def make_read_only(place: Path) -> bool:
    """Let nobody write to a disk that `small_disk` mounted."""
    return _mount("-o", "remount,ro", str(place))


@contextlib.contextmanager
def small_files(nbytes: int) -> Iterator[None]:
    """Let no file of processes that are started meanwhile grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
