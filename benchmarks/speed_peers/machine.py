"""What a comparison ran on, and of which kvchat."""

import os
import platform
import subprocess
import time
from pathlib import Path

import llama_cpp
import psutil

from engine.memory.hardware import this_processor


def describe_machine() -> dict[str, str]:
    """Processor, cores, memory, system and date; nothing that names its owner."""
    memory_gib = psutil.virtual_memory().total / 2**30
    return {
        "processor": this_processor().name,
        "cores": f"{psutil.cpu_count(logical=False) or '?'} physical, {os.cpu_count()} in all",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
    }


def describe_kvchat() -> dict[str, str]:
    """kvchat's commit and the binding that it decodes with."""
    done = subprocess.run(
        ("git", "describe", "--always", "--dirty"),
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return {
        "kvchat": done.stdout.strip() or "unknown",
        "llama-cpp-python": llama_cpp.__version__,
    }
