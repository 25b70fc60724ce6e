import os

import pytest

from engine.memory.gpus import GpuProcess
from engine.memory.units import GIB
from engine.planning.measured import holders


def test_programs_on_a_gpu_are_named_with_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    found = (GpuProcess(1, 2**22 + 5, None), GpuProcess(0, os.getpid(), 3 * GIB))
    monkeypatch.setattr("engine.planning.measured.nvidia_processes", lambda: found)
    first, second = holders()
    assert f"(process {os.getpid()}) holds 3 GiB of GPU 0" in first
    assert second == f"another user's program (process {2**22 + 5}) holds memory of GPU 1"
