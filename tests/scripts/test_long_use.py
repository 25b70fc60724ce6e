"""The long run in tmux: a short one on a real model, and that what it looks for is found."""

import random
import shutil
from pathlib import Path

import pytest
from long_use import Terminal, User, growth_of, tracebacks, use


def test_growth_is_counted_from_the_end_of_the_first_round() -> None:
    assert growth_of([50, 90, 91]) is None
    assert growth_of([50, 90, 91, 93, 92, 94, 96]) == 5
    assert growth_of([50, 90, 90, 90, 300, 90, 90]) == 0


def test_an_exception_that_was_painted_or_logged_is_found(tmp_path: Path) -> None:
    (tmp_path / "state" / "kvchat").mkdir(parents=True)
    log = tmp_path / "state" / "kvchat" / "worker.log"
    log.write_text("all is well")
    (tmp_path / "painted").write_text("chat")
    assert tracebacks(tmp_path) == []
    log.write_text("x\nTraceback (most recent call last):\n  here\nValueError: odd")
    [found] = tracebacks(tmp_path)
    assert "worker.log" in found
    assert "ValueError: odd" in found


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_every_step_comes_to_its_end(tmp_path: Path, starter_path: Path) -> None:
    terminal = Terminal([starter_path], tmp_path)
    try:
        terminal.open()
        user = User(terminal, random.Random(1))
        for step in user.steps:
            step()
        terminal.close()
    finally:
        terminal.end()
    assert tracebacks(tmp_path) == []


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_a_program_that_ends_by_itself_is_a_fault(tmp_path: Path) -> None:
    terminal = Terminal([tmp_path / "no model"], tmp_path)
    try:
        with pytest.raises(Exception, match="kvchat has ended"):
            use(terminal, random.Random(1), 1.0)
    finally:
        terminal.end()
