"""Build llama-cpp-python for this machine; needs only the standard library."""

import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.3.36"
ROOT = Path(__file__).resolve().parent.parent
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
CUDA_FLAGS = ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"]
STEP = re.compile(r"^\s*\[(\d+)/(\d+)\]")


def cmake_flags() -> list[str]:
    """The CMake flags for this machine.

    GCC 12 miscompiles ggml's AMX set-up, and the first decode crashes. Without AMX, single tokens
    are faster too.
    """
    flags = [
        "-DLLAVA_BUILD=ON",  # libmtmd, which reads images
        f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={ROOT / 'scripts' / 'llama-libraries-only.cmake'}",
    ]
    if _has_amx():
        flags += [f"-DCMAKE_C_FLAGS={NO_AMX}", f"-DCMAKE_CXX_FLAGS={NO_AMX}"]
    if _has_cuda():
        flags += CUDA_FLAGS
    return flags


def describe(flags: list[str]) -> str:
    """Describe the build in words."""
    no_amx = ", without AMX, which GCC 12 miscompiles" if NO_AMX in " ".join(flags) else ""
    device = "with CUDA" if CUDA_FLAGS[0] in flags else "for the CPU"
    if platform.system() == "Darwin":
        device = "with Metal"
    return f"for this processor{no_amx}, {device}"


def wheel_folder(flags: list[str]) -> Path:
    """The folder of the wheel for these flags on this machine.

    The wheel has shared libraries for ctypes and no extension module: every Python can load it.
    """
    key = "\n".join([VERSION, platform.machine(), _cpu(), *flags]).replace(str(ROOT), "")
    return ROOT / ".cache" / "wheels" / hashlib.sha256(key.encode()).hexdigest()[:12]


def build_wheel(python: Path, flags: list[str], folder: Path) -> Path:
    """Compile the wheel, unless that was done before; returns its path."""
    built = sorted(folder.glob("llama_cpp_python-*.whl"))
    if built:
        return built[0]
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        sys.exit(
            "llama.cpp is compiled here and needs a C++ compiler, but c++ is not on the path.\n"
            "Debian, Ubuntu: sudo apt install build-essential    macOS: xcode-select --install"
        )
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    command = [
        str(python), "-m", "pip", "wheel", "-v", "--no-deps", "--no-cache-dir",
        "--no-binary", "llama-cpp-python", "-w", str(folder), f"llama-cpp-python=={VERSION}",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "CMAKE_ARGS": shlex.join(flags),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 2),
    }
    if _run_with_progress(command, environment, log) == 0:
        return next(folder.glob("llama_cpp_python-*.whl"))
    if CUDA_FLAGS[0] in flags:
        print(f"The build with CUDA failed (see {log}); building for the CPU.", flush=True)
        plain = [flag for flag in flags if flag not in CUDA_FLAGS]
        return build_wheel(python, plain, wheel_folder(plain))
    sys.exit(f"llama.cpp could not be compiled. From {log}:\n{_reasons(log)}")


def _reasons(log: Path) -> str:
    """The first errors in a log."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return "\n".join((errors or lines)[:12])


def _run_with_progress(command: list[str], environment: dict[str, str], log: Path) -> int:
    is_terminal = sys.stdout.isatty()
    with (
        log.open("w") as file,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        for line in process.stdout or ():
            file.write(line)
            step = STEP.match(line)
            if step and (is_terminal or int(step[1]) % max(1, int(step[2]) // 5) == 0):
                end = "\r" if is_terminal else "\n"
                print(f"  compiled {step[1]} of {step[2]} files", end=end, flush=True)
    if is_terminal:
        print()
    return process.returncode


def _has_cuda() -> bool:
    """Whether there are a CUDA compiler and a card."""
    if platform.system() != "Linux" or not (shutil.which("nvcc") and shutil.which("nvidia-smi")):
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def _has_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and " amx_tile" in cpuinfo.read_text()


def _cpu() -> str:
    """The processor's features, on which `-march=native` depends."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.processor()
    lines = cpuinfo.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
