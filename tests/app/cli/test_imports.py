"""What a command may not import, looked up in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from app.cli.main import run
exit_code = run(sys.argv[1:])
loaded = {name.partition(".")[0] for name in sys.modules}
print(exit_code, *sorted(loaded & {"textual", "torch", "llama_cpp", "numpy"}), file=sys.stderr)
"""


def imported(*arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True
    )
    exit_code, *names = done.stderr.splitlines()[-1].split()
    assert exit_code == "0", done.stderr
    return names


@pytest.mark.parametrize(
    "command",
    [
        "--help",
        "--version",
        "where",
        "where --json",
        "models",
        "run --help",
        "models catalogue qwen3-8b",
        "models cards 4090",
        "doctor --help",
        "chats",
        "chats --help",
        "cache",
        "cache --help",
        "chats search x",
        "chats export --all",
    ],
)
def test_a_command_imports_neither_the_screen_nor_an_engine(command: str) -> None:
    assert imported(*command.split()) == []


@pytest.mark.parametrize("options", [(), ("--json",), ("--vram", "8GiB", "--ctx", "4096")])
def test_plan_imports_neither_the_screen_nor_an_engine(
    starter_path: Path, options: tuple[str, ...]
) -> None:
    assert imported("plan", str(starter_path), *options) == []


def test_export_imports_neither_the_screen_nor_an_engine(starter_path: Path) -> None:
    assert imported("export", str(starter_path), "--preset", "balanced") == []


@pytest.mark.parametrize("module", ["engine", "engine.load", "engine.process.worker"])
def test_torch_waits_for_a_model_that_is_opened_with_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
