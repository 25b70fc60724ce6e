"""Build the sdist and from it the wheel, and try the wheel in an empty environment.

    python scripts/try_package.py [--wheels FOLDER ...] [--keep FOLDER]

`--wheels` names folders with built wheels, such as that of llama-cpp-python, which takes minutes
to compile. Other packages come from pip's index.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLES = ("PATH", "LANG", "LC_ALL", "TERM")
MARKS = ("WRONG", "right")
N_SHOWN = 12
"""Lines of a failed command's output."""
TRIED: tuple[tuple[tuple[str, ...], int, str], ...] = (
    (("--version",), 0, "kvchat "),
    (("--help",), 0, "cache-quality"),
    (("where", "--json"), 0, "model_folders"),
    (("models", "catalogue", "qwen3"), 0, "qwen3"),
    (("plan", "qwen3-8b", "--device", "8GiB"), 0, "weights"),
    (("export", "qwen3-8b", "--format", "shell"), 0, "llama-server"),
    (("completion", "bash"), 0, "_KVCHAT_COMPLETE"),
    (("web",), 1, "kvchat[web]"),
    (("--backend", "torch", "x"), 1, "kvchat"),
)
"""Arguments, exit code, and a text of the output."""
FILES = """
from app.themes import load_themes
from engine.presets.library import list_presets
from pathlib import Path
themes, presets = load_themes(Path("/nowhere")), list_presets(Path("/nowhere"))
assert not themes.problems and len(themes.themes) >= 4, themes
assert len(presets) >= 5 and not [each for each in presets if each.problem], presets
import engine.testing, app.application
print("files are there")
"""


def main() -> int:
    """Build, install and try; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheels", type=Path, action="append", default=[])
    parser.add_argument("--keep", type=Path, help="folder for wheel and sdist")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvchat-package-") as name:
        folder = Path(name)
        wheel = build(folder, (options.keep or folder / "dist").resolve())
        found = [part for each in options.wheels for part in ("--find-links", str(each.resolve()))]
        python = environment(folder / "empty")
        call([python, "-m", "pip", "install", "--quiet", *found, str(wheel)])
        return try_commands(Path(python).parent, folder)


def build(folder: Path, out: Path) -> Path:
    """Build both; returns the wheel."""
    python = environment(folder / "builder")
    call([python, "-m", "pip", "install", "--quiet", "build"])
    call([python, "-m", "build", str(ROOT), "--outdir", str(out)])
    [sdist] = out.glob("*.tar.gz")
    [wheel] = out.glob("*.whl")
    for path in (sdist, wheel):
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)
    return wheel


def try_commands(programs: Path, folder: Path) -> int:
    """Run the commands of an environment in a new home; 1 if one is wrong."""
    home = folder / "home"
    home.mkdir()
    variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    kvchat = str(programs / "kvchat")
    cases = [([kvchat, *arguments], code, text) for arguments, code, text in TRIED]
    cases.append(([str(programs / "python"), "-c", FILES], 0, "files are there"))
    n_wrong = 0
    for command, code, text in cases:
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=home, env={**variables, "HOME": str(home)}, capture_output=True,
            text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        output = done.stdout + done.stderr
        is_right = done.returncode == code and text in output and "Traceback" not in output
        words = "its files" if command[-1] == FILES else " ".join(command[1:])
        print(f"{MARKS[is_right]}  {time.monotonic() - started:5.1f} s  {words}", flush=True)
        if not is_right:
            n_wrong += 1
            print("\n".join(output.splitlines()[-N_SHOWN:]))
    has_manual = (programs.parent / "share" / "man" / "man1" / "kvchat.1").is_file()
    print(f"{MARKS[has_manual]}           the man page")
    return int(n_wrong > 0 or not has_manual)


def environment(folder: Path) -> str:
    """Make a virtual environment; returns its Python."""
    venv.create(folder, with_pip=True)
    return str(folder / "bin" / "python")


def call(command: list[str]) -> None:
    """Run a command; if it fails, print the end of its output and exit."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print("\n".join((done.stdout + done.stderr).splitlines()[-N_SHOWN:]))
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
