"""What can happen to a folder of snapshots, and disks that are small or read-only."""

import contextlib
import random
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

Damage: TypeAlias = Callable[[Path, random.Random], None]
HEAD_BYTES = 32
"""The digest at the start of a snapshot file."""


def snapshots(folder: Path) -> list[Path]:
    """The files of all models and types."""
    return sorted(folder.glob("*.kv"))


def rewrite(path: Path, content: bytes) -> None:
    """Put other bytes into a file, pinned or not."""
    path.chmod(0o600)
    path.write_bytes(content)


def nothing(folder: Path, rng: random.Random) -> None:
    """Leave it as it is."""
    del folder, rng


def truncate(folder: Path, rng: random.Random) -> None:
    """Cut each file somewhere."""
    for path in snapshots(folder):
        content = path.read_bytes()
        rewrite(path, content[: rng.randrange(len(content))])


def truncate_head(folder: Path, rng: random.Random) -> None:
    """Cut each file in its head."""
    for path in snapshots(folder):
        rewrite(path, path.read_bytes()[: rng.randrange(HEAD_BYTES)])


def truncate_one(folder: Path, rng: random.Random) -> None:
    """Take the last byte of one file."""
    path = rng.choice(snapshots(folder))
    rewrite(path, path.read_bytes()[:-1])


def empty(folder: Path, rng: random.Random) -> None:
    """Leave nothing in each file."""
    del rng
    for path in snapshots(folder):
        rewrite(path, b"")


def grow(folder: Path, rng: random.Random) -> None:
    """Write something behind the end of each file."""
    for path in snapshots(folder):
        rewrite(path, path.read_bytes() + rng.randbytes(100))


def _flip(path: Path, at: int, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << rng.randrange(8)
    rewrite(path, bytes(content))


def flip_head(folder: Path, rng: random.Random) -> None:
    """Turn one bit of each head over."""
    for path in snapshots(folder):
        _flip(path, rng.randrange(HEAD_BYTES), rng)


def flip_payload(folder: Path, rng: random.Random) -> None:
    """Turn one bit of each payload over."""
    for path in snapshots(folder):
        size = path.stat().st_size
        _flip(path, rng.randrange(size // 2, size), rng)


def swap_keys(folder: Path, rng: random.Random) -> None:
    """Exchange the names of the files, over all models and types."""
    del rng
    paths = snapshots(folder)
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, [*contents[1:], contents[0]], strict=True):
        rewrite(path, content)


def swap_payloads(folder: Path, rng: random.Random) -> None:
    """Replace the second half of each file with that of another one."""
    del rng
    paths = snapshots(folder)
    contents = [path.read_bytes() for path in paths]
    for path, own, other in zip(paths, contents, [*contents[1:], contents[0]], strict=True):
        half = len(own) // 2
        rewrite(path, own[:half] + other[half:])


def lose_index(folder: Path, rng: random.Random) -> None:
    """Delete the table."""
    del rng
    for path in folder.glob("states.db*"):
        path.unlink()


def break_index(folder: Path, rng: random.Random) -> None:
    """Fill the table with noise."""
    for path in folder.glob("states.db"):
        path.write_bytes(rng.randbytes(8192))
    for path in folder.glob("states.db-*"):
        path.unlink()


def be_of_another_version(folder: Path, rng: random.Random) -> None:
    """Let the table say that another kvchat made it."""
    with contextlib.closing(sqlite3.connect(folder / "states.db")) as table:
        table.execute(f"PRAGMA user_version = {rng.randrange(1000, 2000)}")


def lose_some(folder: Path, rng: random.Random) -> None:
    """Delete every second file, whose row stays."""
    del rng
    for path in snapshots(folder)[::2]:
        path.unlink()


def lose_all(folder: Path, rng: random.Random) -> None:
    """Delete the folder."""
    del rng
    shutil.rmtree(folder)


def be_a_file(folder: Path, rng: random.Random) -> None:
    """Put a file in the place of the folder."""
    lose_all(folder, rng)
    folder.write_bytes(b"not a folder")


def litter(folder: Path, rng: random.Random) -> None:
    """Leave files and folders of others among the snapshots."""
    (folder / "0123456789abcdef.kv").write_bytes(rng.randbytes(1000))
    (folder / "notes.txt").write_text("mine")
    (folder / "fedcba9876543210.kv").mkdir()


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
