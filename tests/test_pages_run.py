"""Every `console` and `python` block of the pages runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from engine.model.starter import STARTER
from tests.support.kvchat import Kvchat

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")})
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BINARIES = Path(sys.executable).parent


def commands_of(block: str) -> str:
    """Shell script with the commands of a `console` block, without their output."""
    commands: list[str] = []
    here_document = ""
    for line in block.splitlines():
        is_command = line.startswith("$ ")
        if is_command or here_document or (commands and commands[-1].endswith("\\")):
            commands.append(line.removeprefix("$ ") if is_command else line)
        if here_document:
            here_document = "" if line == here_document else here_document
        elif is_command and (begin := re.search(r"<<\s*'?(\w+)'?", line)):
            here_document = begin[1]
    return "\n".join(commands)


def test_commands_are_separated_from_their_output() -> None:
    block = "$ a \\\n  --b\nout\n$ cat > f <<'EOF'\nx\nEOF\nout\n$ c\n"
    assert commands_of(block) == "a \\\n  --b\ncat > f <<'EOF'\nx\nEOF\nc"


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path, starter_path: Path) -> None:
    blocks = BLOCK.findall(page.read_text())
    console = [commands_of(block) for language, block in blocks if language == "console"]
    python = [block for language, block in blocks if language == "python"]
    kvchat = Kvchat(tmp_path / "home")
    (kvchat.models / STARTER.file_name).symlink_to(starter_path)
    programs = [["bash", "-euc", script] for script in console]
    programs += [[sys.executable, "-c", "\n".join(python)]] * bool(python)
    for program in programs:
        done = subprocess.run(
            program,
            check=False,
            cwd=tmp_path,
            env={**kvchat.environment, "PATH": f"{BINARIES}:{kvchat.environment['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{program[-1]}\n{done.stdout}{done.stderr}"
