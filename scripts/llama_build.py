"""How llama-cpp-python is built on this machine: flags, wheel, progress."""

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
    """The flags that suit this machine.

    GCC 12 compiles ggml's AMX set-up wrongly, so that the first decode crashes; on a processor with
    AMX those instructions are left out, which is faster for single tokens as well.
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


def without_cuda(flags: list[str]) -> list[str]:
    """The flags of a build for the CPU alone."""
    return [flag for flag in flags if flag not in CUDA_FLAGS]


def describe(flags: list[str]) -> str:
    """Say in words what will be built."""
    parts = ["for this processor"]
    if any(NO_AMX in flag for flag in flags):
        parts.append("without AMX, which GCC 12 miscompiles")
    parts.append("with CUDA" if "-DGGML_CUDA=ON" in flags else "for the CPU")
    if platform.system() == "Darwin":
        parts[-1] = "with Metal"
    return ", ".join(parts)


def wheel_folder(flags: list[str]) -> Path:
    """The folder of the wheel for these flags; another machine or flag is another folder.

    The wheel holds shared libraries for ctypes and no extension module: every Python can load it.
    """
    key = "\n".join([VERSION, platform.machine(), _cpu(), *flags])
    return ROOT / ".cache" / "wheels" / hashlib.sha256(key.encode()).hexdigest()[:12]


def build_wheel(python: Path, flags: list[str], folder: Path) -> Path:
    """Compile the wheel, or give the one that was compiled before."""
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
    if "-DGGML_CUDA=ON" in flags:
        print(f"The build with CUDA failed (see {log}); building for the CPU.", flush=True)
        plain = without_cuda(flags)
        return build_wheel(python, plain, wheel_folder(plain))
    sys.exit(f"llama.cpp could not be compiled. From {log}:\n{_reasons(log)}")


def _reasons(log: Path) -> str:
    """The lines of a log that say what went wrong, else its end."""
    lines = log.read_text(errors="replace").splitlines()
    telling = [line for line in lines if re.search(r"\b(fatal )?error\b", line, re.IGNORECASE)]
    return "\n".join((telling or lines)[:12])


def _run_with_progress(command: list[str], environment: dict[str, str], log: Path) -> int:
    shown = ""
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in process.stdout or ():
            file.write(line)
            step = STEP.match(line)
            now = f"  compiled {step[1]} of {step[2]} files" if step else shown
            if now != shown and (sys.stdout.isatty() or _is_tenth(step)):
                end = "\r" if sys.stdout.isatty() else "\n"
                print(now, end=end, flush=True)
                shown = now
    if sys.stdout.isatty():
        print()
    return process.wait()


def _is_tenth(step: re.Match[str] | None) -> bool:
    return step is not None and int(step[1]) % max(1, int(step[2]) // 5) == 0


def _has_cuda() -> bool:
    """Whether there is a compiler for CUDA and a card that it can compile for."""
    if platform.system() != "Linux" or not (shutil.which("nvcc") and shutil.which("nvidia-smi")):
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "GPU" in listed.stdout


def _has_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.is_file() and " amx_tile" in cpuinfo.read_text()


def _cpu() -> str:
    """What `-march=native` depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.is_file():
        return platform.processor()
    lines = cpuinfo.read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
