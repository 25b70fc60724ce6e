"""Set up kvchat in `.venv`; make runs this with the system's Python and its standard library.

    python3 scripts/setup.py             kvchat
    python3 scripts/setup.py --dev       with the tools of the tests and the gate
    python3 scripts/setup.py --rebuild   compile llama.cpp again
    python3.13 scripts/setup.py --this-python   replace a .venv of another Python

A stamp in `.venv` records what is installed, so that nothing is installed twice.
"""

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "kvchat-setup"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of builds without CUDA; PyPI's build for Linux has CUDA."""
REACH_S = 5.0

if sys.version_info < (3, 11):  # noqa: UP036  any Python may run this file
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"kvchat needs Python 3.11 or newer, this is {version}: make chat PYTHON=python3.12")

import tomllib  # noqa: E402  not there before 3.11

import llama_build  # noqa: E402  uses the syntax of 3.10


def main() -> None:
    """Install everything that is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dev", action="store_true", help="tests and gate too")
    parser.add_argument("--rebuild", action="store_true", help="compile llama.cpp again")
    parser.add_argument("--this-python", action="store_true", help="replace a .venv of another")
    options = parser.parse_args()
    start = time.monotonic()
    flags = llama_build.cmake_flags()
    parts = (ROOT / "pyproject.toml").read_text(), llama_build.VERSION, *flags, str(options.dev)
    wanted = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    made_for = environment_version()
    if options.this_python and made_for not in (None, platform.python_version()):
        print(f".venv is of Python {made_for}: replacing it.", flush=True)
        shutil.rmtree(VENV)
    installed = STAMP.read_text().split() if STAMP.is_file() else []
    if wanted in installed and not options.rebuild:
        return
    make_environment()
    install_llama(flags, rebuild=options.rebuild)
    install_kvchat(dev=options.dev)
    STAMP.write_text(" ".join({*installed, wanted}) + "\n")
    print(f"kvchat is set up ({time.monotonic() - start:.0f} s).", flush=True)


def environment_version() -> str | None:
    """The Python version of `.venv`; None if there is no `.venv`."""
    path = VENV / "pyvenv.cfg"
    if not path.is_file():
        return None
    version = re.search(r"^version *= *(\S+)", path.read_text(), re.MULTILINE)
    return version[1] if version else "unknown"


def make_environment() -> None:
    """Make the virtual environment if there is none."""
    if PYTHON.is_file():
        return
    print("Making .venv ...", flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False)
    if made.returncode != 0:
        sys.exit("The virtual environment could not be made. Debian: sudo apt install python3-venv")


def install_llama(flags: list[str], *, rebuild: bool) -> None:
    """Compile and install llama-cpp-python with the flags of this machine."""
    folder = llama_build.wheel_folder(flags)
    if rebuild:
        for wheel in folder.glob("*.whl"):
            wheel.unlink()
    if not any(folder.glob("*.whl")):
        print(
            f"Compiling llama.cpp {llama_build.describe(flags)}: a few minutes on two cores, once.",
            flush=True,
        )
    wheel = llama_build.build_wheel(PYTHON, flags, folder)
    pip("install", "--force-reinstall", "--no-deps", str(wheel))


def install_kvchat(*, dev: bool) -> None:
    """Install kvchat from this checkout, editable, and its libraries."""
    print("Installing kvchat and its libraries ...", flush=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pip("install", "--editable", str(ROOT), *(project["dependency-groups"]["dev"] if dev else ()))
    if dev:
        pip("install", *project["project"]["optional-dependencies"]["torch"], *_cpu_builds())


def _cpu_builds() -> list[str]:
    """Options of pip for a PyTorch without CUDA, which is gigabytes smaller.

    Empty if that index cannot be reached: pip would retry it for minutes.
    """
    if platform.system() != "Linux":
        return []
    try:
        with urllib.request.urlopen(f"{CPU_BUILDS}/torch/", timeout=REACH_S):
            return ["--extra-index-url", CPU_BUILDS, "--retries", "1", "--timeout", "15"]
    except OSError:
        return []


def pip(*arguments: str) -> None:
    """Run the environment's pip, which prints only errors."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"pip failed ({' '.join(arguments[:3])} ...):\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
