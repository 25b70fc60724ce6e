"""The table of speeds foretold and measured: errors, their middle, and its place on the page."""

from pathlib import Path

import pytest
import speeds

ROWS = [
    speeds.Row("m", "usual", 96, bound=150.0, before=99.0, measured=100.0),
    speeds.Row("m", "1 thread", 96, bound=150.0, before=49.0, measured=50.0),
    speeds.Row("m", "usual", 3096, bound=120.0, before=84.0, measured=80.0),
]


def test_each_row_tells_both_errors_and_the_last_line_their_middle(tmp_path: Path) -> None:
    lines = speeds.table(ROWS, 2.5e10)
    assert "memory read at 25.0 GB/s" in lines[0]
    assert lines[4] == "| m | usual | 96 | 100.0 | ≤ 150.0 | +50 % | 99.0 | -1 % |"
    assert lines[5].endswith("| 50.0 | ≤ 150.0 | +200 % | 49.0 | -2 % |")
    assert "50 % above what was measured in the median row" in lines[-1]
    assert "measured before 2.0 % off" in lines[-1]
    assert {line.count("|") for line in lines[2:7]} == {9}
    page = tmp_path / "page.md"
    page.write_text(f"before\n{speeds.BEGIN}\nold\n{speeds.END}\nafter\n")
    speeds.write(page, lines)
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert lines[4] in text
    page.write_text("no marks")
    with pytest.raises(SystemExit, match="has no"):
        speeds.write(page, lines)


def test_the_page_of_models_has_the_place() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    assert text.index(speeds.BEGIN) < text.index(speeds.END)
