"""The example of `docs/pairs.md` runs and prints what stands there."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "pairs.md"


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```(?:python)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    example, printed = blocks[-2:]
    exec(compile(example, str(PAGE), "exec"), {})
    assert capsys.readouterr().out == printed
