"""The example with two functions in docs/scripting.md runs as it stands there."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "scripting.md").read_text()


def test_the_example_drafts_counts_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    source = re.search(r"```python\n# two_functions.py\n(.*?)```", TEXT, re.DOTALL)
    assert source is not None
    names: dict[str, object] = {}
    exec(compile(source[1], "two_functions.py", "exec"), names)
    assert names["tokens"] == tuple(range(8, 58))
    shown = capsys.readouterr().out
    assert shown.startswith("50 1.0\n")
    assert 'kvchat_accepted_tokens_total{source="callback"}' in shown
