"""The example in docs/manifests.md runs as it stands there."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "manifests.md").read_text()


def test_the_example_counts_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    source = re.search(r"```python\n# figures.py\n(.*?)```", TEXT, re.DOTALL)
    assert source is not None
    exec(compile(source[1], "figures.py", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.startswith("40 1.0\n")
    assert 'kvchat_accepted_tokens_total{source="callback"}' in shown
