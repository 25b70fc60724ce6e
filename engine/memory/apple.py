"""Apple's unified memory: one pool, of which Metal gives a GPU a part.

Metal's `recommendedMaxWorkingSetSize`, which llama.cpp prints when it starts, was 10.67 GiB of 16
and 48 of 64 in public logs (llama.cpp issues 1870 and 5206, llama-cpp-python issue 687): two thirds
up to 36 GiB, three quarters above. macOS 26 gives more, 11.84 of 16 and 107.5 of 128 (llmfit pull
request 754, ds4 pull request 893); the smaller figures are planned with. `sysctl
iogpu.wired_limit_mb` overrides it.
"""

import subprocess
import sys
from platform import machine

from engine.memory.units import GIB, MIB

SMALL_MACHINE_BYTES = 36 * GIB
SYSCTL = "/usr/sbin/sysctl"


def has_unified_memory() -> bool:
    """Whether this is a Mac with Apple's own chip."""
    return sys.platform == "darwin" and machine() == "arm64"


def gpu_share(ram_bytes: int, wired_limit_mib: int = 0) -> int:
    """Give the bytes that the GPU may take of a machine's memory; 0 is no limit set by hand."""
    if wired_limit_mib > 0:
        return min(wired_limit_mib * MIB, ram_bytes)
    return ram_bytes * 2 // 3 if ram_bytes <= SMALL_MACHINE_BYTES else ram_bytes * 3 // 4


def chip_name() -> str:
    """Give the chip's name, such as `Apple M4 Max`."""
    return _sysctl("machdep.cpu.brand_string") or "Apple GPU"


def wired_limit_mib() -> int:
    """Give the limit that the user set, in MiB; 0 where none is."""
    text = _sysctl("iogpu.wired_limit_mb")
    return int(text) if text.isdecimal() else 0


def _sysctl(key: str) -> str:
    try:
        run = subprocess.run(
            [SYSCTL, "-n", key], capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return run.stdout.strip()
