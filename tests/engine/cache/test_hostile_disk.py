"""A full disk and a read-only folder lose no state that was written before."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests.engine.cache.hostile_disk"


@pytest.fixture
def path() -> Iterator[Path]:
    """A folder that another user may reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="kvchat-states-"))
    folder.chmod(0o711)
    yield folder / "states"
    for each in (folder / "states", *(folder / "states").glob("*/")):
        if each.is_dir():
            each.chmod(0o700)
    shutil.rmtree(folder)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_file_that_does_not_fit_leaves_the_others_intact(path: Path) -> None:
    ended = run(sys.executable, "-m", MODULE, "limited", str(path))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("how", ["full", "brim"])
def test_states_on_a_full_disk_stay_intact_and_can_be_pruned(path: Path, how: str) -> None:
    path.mkdir()
    mount = f'mount -t tmpfs -o size=3m tmpfs "{path}"'
    if run("unshare", "-rm", "sh", "-c", mount).returncode != 0:
        pytest.skip("this machine mounts no file system for tests")
    command = f'{mount} && exec "{sys.executable}" -m {MODULE} {how} "{path}"'
    ended = run("unshare", "-rm", "sh", "-c", command)
    assert ended.returncode == 0, ended.stderr


def test_a_read_only_folder_is_reported_with_what_to_do_and_loses_nothing(path: Path) -> None:
    ended = run(sys.executable, "-m", MODULE, "read-only", str(path))
    assert ended.returncode == 0, ended.stderr
