"""What a command may not import, looked up in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
from app.cli.main import run
for command in json.loads(sys.argv[1]):
    exit_code = run(command)
    loaded = {name.partition(".")[0] for name in sys.modules}
    found = sorted(loaded & {"textual", "torch", "llama_cpp", "numpy"})
    print("\\nRAN", *command, exit_code, *found, file=sys.stderr)
"""
COMMANDS = (
    "--help", "--version", "where", "where --json", "models", "run --help",
    "models catalogue qwen3-8b", "models cards 4090", "doctor --help", "chats", "chats --help",
    "cache", "cache --help", "chats search x", "chats export --all",
)  # fmt: skip


def test_commands_import_neither_the_screen_nor_an_engine(starter_path: Path) -> None:
    plan = ["plan", str(starter_path)]
    commands = [
        *(command.split() for command in COMMANDS),
        plan,
        [*plan, "--json"],
        [*plan, "--vram", "8GiB", "--ctx", "4096"],
        ["export", str(starter_path), "--preset", "balanced"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line for line in done.stderr.splitlines() if line.startswith("RAN ")]
    assert told == [f"RAN {' '.join(command)} 0" for command in commands], done.stderr


@pytest.mark.parametrize("module", ["engine", "engine.load", "engine.process.worker"])
def test_torch_waits_for_a_model_that_is_opened_with_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
