# ruff: noqa: N801, N802, N818  the fake driver has the names of the real one

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from engine.configuration import Configuration
from engine.errors import HardwareError
from engine.memory import hardware
from engine.memory.cards import planned_devices
from engine.memory.estimate import estimate
from engine.memory.hardware import (
    Device,
    find_amd_gpus,
    find_cpu,
    find_gpus,
    memory_limit,
    nvidia_processes,
)
from engine.memory.units import GIB, MIB
from engine.model.architecture import read_model


def tree(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


@pytest.mark.parametrize("asked", [{"vram_bytes": (0,)}, {"ram_bytes": -1}, {"ram_bytes": 0}])
def test_a_device_of_no_size_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(HardwareError, match="write a size above 0"):
        planned_devices(**asked)  # type: ignore[arg-type]


HUGE = str(2**63 - 4096)
V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/kvchat.slice/run", {
            f"{V2}/kvchat.slice/memory.max": 8 * GIB,
            f"{V2}/kvchat.slice/memory.current": 3 * GIB,
            f"{V2}/kvchat.slice/memory.stat": f"anon 5\ninactive_file {GIB}\n",
            f"{V2}/kvchat.slice/run/memory.max": "max\n",
        }, (8 * GIB, 6 * GIB)),
        ("0::/a/b", {
            f"{V2}/a/memory.max": 8 * GIB, f"{V2}/a/memory.current": 7 * GIB,
            f"{V2}/a/b/memory.max": 4 * GIB, f"{V2}/a/b/memory.current": GIB,
        }, (4 * GIB, GIB)),
        ("0::/../host/path", {
            f"{V2}/memory.max": 2 * GIB, f"{V2}/memory.current": GIB,
        }, (2 * GIB, GIB)),
        ("5:cpu:/\n4:memory:/docker/x", {
            f"{V1}/memory.limit_in_bytes": GIB, f"{V1}/memory.usage_in_bytes": GIB // 4,
            f"{V1}/docker/x/memory.limit_in_bytes": HUGE,
        }, (GIB, GIB - GIB // 4)),
        ("4:memory:/", {f"{V1}/memory.limit_in_bytes": HUGE}, None),
        ("", {}, None),
    ],
    ids=["unused pages are free", "tightest of nested", "only its own top", "version 1",
         "huge is unlimited", "no control groups"],
)  # fmt: skip
def test_the_limit_of_a_container_counts(
    tmp_path: Path, group: str, files: dict[str, object], limit: tuple[int, int] | None
) -> None:
    texts = {name: str(value) for name, value in files.items()}
    assert memory_limit(tree(tmp_path, {"proc/self/cgroup": group, **texts})) == limit


def amd_card(index: int, metrics: int, **sizes: int) -> dict[str, str | bytes]:
    folder = f"class/drm/card{index}/device"
    files: dict[str, str | bytes] = {f"{folder}/{name}": str(n) for name, n in sizes.items()}
    files[f"{folder}/vendor"] = "0x1002\n"
    files[f"{folder}/gpu_metrics"] = bytes([120, 0, metrics, 3]) + bytes(116)
    return files


@pytest.mark.parametrize(
    ("metrics", "vram", "expected"), [(1, 16, (16, 15, False)), (3, 2, (61, 60, True))]
)
def test_an_amd_gpu_is_read_from_its_driver_and_an_integrated_one_has_its_part_of_ram(
    tmp_path: Path, metrics: int, vram: int, expected: tuple[int, int, bool]
) -> None:
    sizes = {"mem_info_vram_total": vram * GIB, "mem_info_vram_used": GIB,
             "mem_info_gtt_total": 59 * GIB, "mem_info_gtt_used": 0}  # fmt: skip
    [gpu] = find_amd_gpus(tree(tmp_path, amd_card(0, metrics, **sizes)))
    assert (gpu.total_bytes // GIB, gpu.free_bytes // GIB, gpu.is_unified) == expected


def test_cards_of_other_makers_and_connectors_are_no_amd_gpus(tmp_path: Path) -> None:
    tree(tmp_path, {
        "class/drm/card0/device/vendor": "0x10de\n",
        "class/drm/card0/device/mem_info_vram_total": str(GIB),
        "class/drm/card1/device/vendor": "0x1002\n",
    })  # fmt: skip
    assert find_amd_gpus(tmp_path) == ()


def test_an_integrated_gpu_counts_only_where_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.memory.hardware.find_nvidia_gpus", lambda: ())
    both = tree(tmp_path / "both", {
        **amd_card(0, 1, mem_info_vram_total=8 * GIB),
        **amd_card(1, 3, mem_info_vram_total=GIB),
    })  # fmt: skip
    alone = tree(tmp_path / "alone", amd_card(0, 2, mem_info_vram_total=GIB))
    for sysfs, expected in ((both, [(8, False, "AMD")]), (alone, [(1, True, "AMD")])):
        found = find_amd_gpus(sysfs)
        monkeypatch.setattr("engine.memory.hardware.find_amd_gpus", lambda found=found: found)
        gpus_here = [(d.total_bytes // GIB, d.is_unified, d.vendor) for d in find_gpus()]
        assert gpus_here == expected


def test_a_limit_makes_ram_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.memory.hardware.memory_limit", lambda: (64 * MIB, 16 * MIB))
    assert (find_cpu().total_bytes, find_cpu().free_bytes) == (64 * MIB, 16 * MIB)


def test_apple_gives_the_gpu_two_thirds_or_three_quarters_of_the_memory() -> None:
    assert hardware.apple_share(16 * GIB) == pytest.approx(10.67 * GIB, rel=0.001)
    assert hardware.apple_share(64 * GIB) == 48 * GIB
    assert hardware.apple_share(64 * GIB, wired_limit_mib=57344) == 56 * GIB


def test_a_mac_has_one_gpu_inside_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.memory.hardware.has_apple_gpu", lambda: True)
    chip = {"machdep.cpu.brand_string": "Apple M4"}
    monkeypatch.setattr("engine.memory.hardware.sysctl", lambda key: chip.get(key, ""))
    monkeypatch.setattr("engine.memory.hardware.find_amd_gpus", lambda: ())
    monkeypatch.setattr("engine.memory.hardware.find_nvidia_gpus", lambda: ())
    cpu = Device("CPU", "cpu", 24 * GIB, 12 * GIB)
    monkeypatch.setattr("engine.memory.hardware.find_cpu", lambda: cpu)
    apple = Device("Apple M4", "gpu", 16 * GIB, 12 * GIB, is_unified=True, vendor="Apple")
    assert find_gpus() == (apple,)


class FakeDriver:
    """What `pynvml` offers, for two cards of which the second shares the machine's memory."""

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class Fields:
        def __init__(self, **values: int | None) -> None:
            self.__dict__ |= values

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetName(self, handle: int) -> str:
        return ("RTX 4090", "GB10")[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
        if handle == 1:
            raise self.NVMLError_NotSupported
        return self.Fields(total=24 * GIB, free=20 * GIB)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[object]:
        return [self.Fields(pid=10 + handle, usedGpuMemory=4 * GIB)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[object]:
        return [self.Fields(pid=77, usedGpuMemory=None)] if handle == 0 else []


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver())  # type: ignore[arg-type]


def test_nvidia_cards_are_listed_and_a_shared_one_has_the_machines_memory(driver: None) -> None:
    first, second = hardware.find_nvidia_gpus()
    assert first == Device("RTX 4090", "gpu", 24 * GIB, 20 * GIB)
    assert second.is_unified
    assert second.total_bytes == find_cpu().total_bytes


def test_the_processes_of_each_card_are_listed(driver: None) -> None:
    assert [(p.gpu, p.pid, p.used_bytes) for p in nvidia_processes()] == [
        (0, 10, 4 * GIB), (0, 77, None), (1, 11, 4 * GIB),
    ]  # fmt: skip


def test_without_a_driver_there_are_neither_cards_nor_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeDriver()

    def fail() -> None:
        raise fake.NVMLError

    monkeypatch.setattr(fake, "nvmlInit", fail, raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    assert hardware.find_nvidia_gpus() == ()
    assert nvidia_processes() == ()


def test_an_estimate_counts_shared_memory_once_where_it_is_scarce(starter_path: Path) -> None:
    model, ram = read_model(starter_path), Device("CPU", "cpu", 8 * GIB, GIB)
    shared = Device("Apple M4", "gpu", 5 * GIB, GIB, is_unified=True)
    gpu, cpu = estimate(model, Configuration(starter_path, 8192), (shared, ram)).devices
    assert cpu.shared_bytes == gpu.total_bytes > 0
    assert cpu.left_bytes == GIB - cpu.total_bytes - gpu.total_bytes
    own = replace(shared, is_unified=False)
    _, apart = estimate(model, Configuration(starter_path, 8192), (own, ram)).devices
    assert apart.left_bytes == GIB - apart.total_bytes
