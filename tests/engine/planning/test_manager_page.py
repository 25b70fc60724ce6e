"""What `docs/manager.md` shows is what happens."""

import re
from pathlib import Path

from engine.planning.kv_cache_planner import SETTINGS

DOCS = Path(__file__).resolve().parents[3] / "docs" / "manager.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_every_line_of_the_documentation_runs_as_it_says() -> None:
    text = DOCS.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)


def test_every_setting_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert not [name for name in SETTINGS if f"`{name}`" not in text]
