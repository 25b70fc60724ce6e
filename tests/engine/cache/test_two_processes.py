"""Several processes on one folder: each reads what was written or nothing; none fails."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from engine.cache.store import SegmentStore
from tests.engine.cache.making import payload_of
from tests.engine.cache.two_processes import STATES
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[3]
MODULE = "tests.engine.cache.two_processes"


def begin(path: Path, seed: int, n_acts: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", MODULE, str(path), str(seed), str(n_acts)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def check_all(path: Path) -> int:
    """Read every state that is listed, and give how many there were."""
    known = {state.key: state for states in STATES.values() for state in states}
    with SegmentStore(path) as folder:
        states = folder.segments()
        for state in states:
            assert folder.read(state) == payload_of(known[state.key])
        assert folder.take_notes() == ()
    assert {file.stem for file in path.glob("*.kv")} == {state.key for state in states}
    return len(states)


def test_processes_that_write_and_delete_the_same_states_never_read_a_wrong_one(
    tmp_path: Path,
) -> None:
    processes = [begin(tmp_path, seed, 120) for seed in (1, 2)]
    n_read = 0
    for process in processes:
        printed, error = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, error
        n_read += int(printed)
    assert n_read > 0
    check_all(tmp_path)


def test_a_killed_process_leaves_an_intact_folder(tmp_path: Path) -> None:
    choice = random.Random(5)
    for seed in range(6):
        process = begin(tmp_path, seed, 100_000)
        wait_until(lambda: any(".kv" in "".join(names) for _, _, names in os.walk(tmp_path)))
        time.sleep(choice.random() * 0.3)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        check_all(tmp_path)
        assert not list(tmp_path.rglob("*.new"))
