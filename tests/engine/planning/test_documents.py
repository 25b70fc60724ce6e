"""What `docs/manager.md` and `docs/pairs.md` show is what happens."""

import re
from pathlib import Path

import pytest

from engine.planning.kv_cache_planner import SETTINGS

DOCS = Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def test_every_line_of_the_documentation_runs_as_it_says() -> None:
    text = (DOCS / "manager.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "manager.md", "exec"), names)
    assert not [name for name in SETTINGS if f"`{name}`" not in text], "every setting is there"


def test_the_example_of_pairs_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    example, printed = BLOCK.findall((DOCS / "pairs.md").read_text(encoding="utf-8"))[-2:]
    exec(compile(example, "pairs.md", "exec"), {})
    assert capsys.readouterr().out == printed
