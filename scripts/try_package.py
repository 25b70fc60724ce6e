"""Builds the wheel and the sdist, and tries what they hold in an environment that has nothing else.

    python scripts/try_package.py [--wheels FOLDER ...] [--model GGUF] [--keep FOLDER]

The wheel is built out of the sdist, as an index would have it. `--wheels` names folders of wheels
that are there already, such as that of llama-cpp-python, which takes minutes to compile; other
packages come from the index that pip knows. With `--model` a reply is asked for too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOWN_LINES = 12
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
"""Arguments, exit status, and what the output holds."""
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
    """Build, install, try; 1 where something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--wheels", type=Path, action="append", default=[])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--keep", type=Path, help="where wheel and sdist stay")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kvchat-package-") as name:
        folder = Path(name)
        built = build(folder, (options.keep or folder / "dist").resolve())
        python = installed(folder / "empty", built, options.wheels)
        return tried(python, folder, options.model)


def build(folder: Path, out: Path) -> Path:
    """The wheel, built from the sdist beside it."""
    python = environment(folder / "builder")
    call([python, "-m", "pip", "install", "--quiet", "build"])
    call([python, "-m", "build", str(ROOT), "--outdir", str(out)])
    [sdist] = out.glob("*.tar.gz")
    [wheel] = out.glob("*.whl")
    for path in (sdist, wheel):
        print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB", flush=True)
    return wheel


def installed(folder: Path, wheel: Path, wheels: Sequence[Path]) -> str:
    """The Python of an environment that has the wheel and what it needs."""
    python = environment(folder)
    found = [part for each in wheels for part in ("--find-links", str(each.resolve()))]
    call([python, "-m", "pip", "install", "--quiet", *found, str(wheel)])
    return python


def tried(python: str, folder: Path, model: Path | None) -> int:
    """Run what an environment holds, in a home of its own; 1 where it is not as it should be."""
    home = folder / "home"
    home.mkdir()
    kept = ("PATH", "LANG", "LC_ALL", "TERM")
    clean = {name: os.environ[name] for name in kept if name in os.environ} | {"HOME": str(home)}
    kvchat = str(Path(python).with_name("kvchat"))
    cases = [([kvchat, *arguments], code, said) for arguments, code, said in TRIED]
    cases.append(([python, "-c", FILES], 0, "files are there"))
    if model is not None:
        reply = ["run", "Hello.", "--model", str(model.resolve()), "--max-tokens", "8", "--json"]
        cases.append(([kvchat, *reply], 0, '"n_emitted"'))
    n_wrong = 0
    for command, code, said in cases:
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=home, env=clean, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        output = done.stdout + done.stderr
        is_right = done.returncode == code and said in output and "Traceback" not in output
        words = " ".join(command[1:]) if command[0] == kvchat else "its files"
        mark = "right" if is_right else "WRONG"
        print(f"{mark}  {time.monotonic() - started:5.1f} s  {words}", flush=True)
        if not is_right:
            n_wrong += 1
            print("\n".join(output.splitlines()[-SHOWN_LINES:]))
    manual = Path(python).parent.parent / "share" / "man" / "man1" / "kvchat.1"
    print(f"{'right' if manual.is_file() else 'WRONG'}           the man page")
    return 1 if n_wrong or not manual.is_file() else 0


def environment(folder: Path) -> str:
    """The Python of a new virtual environment."""
    venv.create(folder, with_pip=True)
    return str(folder / "bin" / "python")


def call(command: list[str]) -> None:
    """Run a command and end where it fails, with what it said last."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print("\n".join((done.stdout + done.stderr).splitlines()[-SHOWN_LINES:]))
        sys.exit(f"failed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
