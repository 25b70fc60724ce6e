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
    print("\\nRAN", exit_code, *found, file=sys.stderr)
"""
COMMANDS = (
    "--help", "--version", "where", "where --json", "models",
    "models catalogue qwen3-8b", "models cards 4090", "doctor --help", "chats", "chats --help",
    "cache", "cache --help", "chats search x", "chats export --all",
    "import -- llama-server -m a.gguf",
    "fit llama-3.1-8b --device 8GiB --json",
    "run --help", "batch --help", "replay --help", "bench --help", "compare --help", "tune --help",
)  # fmt: skip


def imported(commands: list[list[str]]) -> list[list[str]]:
    """What of the screen and the engines is loaded after each command, all in one process."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    message = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("RAN ")]
    assert [exit_code for exit_code, *_ in message] == ["0"] * len(commands), done.stderr
    return [found for _, *found in message]


def test_commands_import_neither_the_screen_nor_an_engine(starter_path: Path) -> None:
    plan = ["plan", str(starter_path)]
    commands = [
        *(command.split() for command in COMMANDS),
        plan,
        [*plan, "--json"],
        [*plan, "--vram", "8GiB", "--ctx", "4096"],
        ["export", str(starter_path), "--preset", "balanced"],
    ]
    found = imported(commands)
    assert [command for command, names in zip(commands, found, strict=True) if names] == []


@pytest.mark.parametrize("module", ["engine", "engine.load", "engine.process.worker"])
def test_torch_waits_for_a_model_that_is_opened_with_it(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules or 'gguf' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_chat_opens_without_what_only_plans_replies_and_presets_need() -> None:
    late = (
        "numpy", "jinja2", "markdown_it", "tomlkit", "psutil", "engine.memory.estimate",
        "engine.planning.planner", "engine.presets.preset", "engine.grammar.mask",
    )  # fmt: skip
    code = "import sys, app.application, app.startup; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*late} & {*done.stdout.split()} == set()
