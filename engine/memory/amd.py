"""AMD GPUs as the Linux driver describes them, without ROCm.

Kernel documentation, `gpu/amdgpu/driver-misc.rst` (`mem_info_vram_total`, `mem_info_gtt_total`) and
`gpu/amdgpu/thermal.rst` (`gpu_metrics`, whose format 2 and 3 are those of APUs:
`drivers/gpu/drm/amd/include/kgd_pp_interface.h`).
"""

from dataclasses import dataclass
from pathlib import Path

SYSFS = Path("/sys")
AMD_VENDOR = "0x1002"
APU_METRICS = (2, 3)


@dataclass(frozen=True, slots=True)
class AmdGpu:
    """One GPU; that of an APU has a window of main memory beside its own share."""

    name: str
    is_integrated: bool
    total_bytes: int
    free_bytes: int


def find_amd_gpus(sysfs: Path = SYSFS) -> tuple[AmdGpu, ...]:
    """Give the AMD GPUs that the driver reports; none on other systems."""
    cards = (sysfs / "class/drm").glob("card*/device")
    found = [gpu for device in sorted(cards) if (gpu := _gpu(device)) is not None]
    return tuple(found)


def _gpu(device: Path) -> AmdGpu | None:
    total = _number(device / "mem_info_vram_total")
    if _text(device / "vendor") != AMD_VENDOR or not total:
        return None
    used = _number(device / "mem_info_vram_used")
    is_integrated = _is_integrated(device)
    if is_integrated:
        total += _number(device / "mem_info_gtt_total")
        used += _number(device / "mem_info_gtt_used")
    name = _text(device / "product_name") or ("AMD integrated GPU" if is_integrated else "AMD GPU")
    return AmdGpu(name, is_integrated, total, max(0, total - used))


def _is_integrated(device: Path) -> bool:
    try:
        header = (device / "gpu_metrics").read_bytes()[:4]
    except OSError:
        return False
    return len(header) == 4 and header[2] in APU_METRICS


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdecimal() else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""  # the driver does not say
