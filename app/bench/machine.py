"""The machine and the build that a measurement belongs to."""

import os
import platform
from pathlib import Path

import psutil

from app import __version__
from app.bench.records import Machine
from app.doctor.llama_cpp import check_build
from engine.memory.hardware import find_gpus

CPU_INFO = Path("/proc/cpuinfo")


def this_machine() -> Machine:
    """Give the facts without which a number cannot be compared with another machine's."""
    _, build = check_build()
    described = "unknown" if build is None else f"{build.version} ({build.features})"
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=processor_name(CPU_INFO.read_text() if CPU_INFO.is_file() else ""),
        n_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpus=tuple(device.name for device in find_gpus()),
        llama_cpp=f"llama-cpp-python {described}",
        kvchat=__version__,
        python=platform.python_version(),
    )


def processor_name(cpu_info: str) -> str:
    """Give the model of the processor from the text of `/proc/cpuinfo`, else the architecture."""
    for line in cpu_info.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
