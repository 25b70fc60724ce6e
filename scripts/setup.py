"""Sets kvchat up in `.venv`; run by make, by the system's Python, with nothing but its library.

    python3 scripts/setup.py             kvchat and the starter model
    python3 scripts/setup.py --dev       with what the tests and the gate need
    python3 scripts/setup.py --rebuild   compile llama.cpp again
    python3.13 scripts/setup.py --this-python   make .venv anew where it is of another Python

What is done already is not done again: a stamp in `.venv` holds what was installed.
"""

import argparse
import hashlib
import platform
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "kvchat-setup"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds for processors; PyPI's build for Linux is the one for CUDA."""
REACH_S = 5.0

if sys.version_info < (3, 11):  # noqa: UP036  this file meets any Python there is
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(f"kvchat needs Python 3.11 or newer, this is {version}: make chat PYTHON=python3.12")

import tomllib  # noqa: E402  not there before 3.11

import llama_build  # noqa: E402  beside this file; uses the syntax of 3.10


def main() -> None:
    """Bring `.venv` to what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--dev", action="store_true", help="tests and gate too")
    parser.add_argument("--rebuild", action="store_true", help="compile llama.cpp again")
    parser.add_argument("--this-python", action="store_true", help="replace a .venv of another")
    options = parser.parse_args()
    start = time.monotonic()
    flags = llama_build.cmake_flags()
    wanted = fingerprint(flags, dev=options.dev)
    made_for = environment_version()
    if options.this_python and made_for not in (None, platform.python_version()):
        print(f".venv is of Python {made_for}: making it anew.", flush=True)
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
    """The version of the Python that `.venv` was made of, None where there is none."""
    try:
        lines = (VENV / "pyvenv.cfg").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.replace(" ", "").split("=", 1) for line in lines if "=" in line)
    return fields.get("version", "unknown")


def fingerprint(flags: list[str], *, dev: bool) -> str:
    """A name for what would be installed."""
    parts = [(ROOT / "pyproject.toml").read_text(), llama_build.VERSION, *flags, str(dev)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


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
    """Install kvchat from this checkout, editable, with what it needs."""
    print("Installing kvchat and its libraries ...", flush=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if not dev:
        pip("install", "--editable", str(ROOT))
        return
    pip("install", "--editable", str(ROOT), *project["dependency-groups"]["dev"])
    pip("install", *project["project"]["optional-dependencies"]["torch"], *_cpu_builds())


def _cpu_builds() -> list[str]:
    """Where pip finds PyTorch without CUDA, which is gigabytes less.

    Nothing where that is out of reach: pip would ask there again and again.
    """
    if platform.system() != "Linux":
        return []
    try:
        with urllib.request.urlopen(f"{CPU_BUILDS}/torch/", timeout=REACH_S):
            return ["--extra-index-url", CPU_BUILDS, "--retries", "1", "--timeout", "15"]
    except (OSError, urllib.error.URLError):
        return []


def pip(*arguments: str) -> None:
    """Run pip of the environment, quiet unless it fails."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"pip failed ({' '.join(arguments[:3])} ...):\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
