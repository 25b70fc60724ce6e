import pytest

from app.cli.slow_reading import SlowReading


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_quick_is_not_talked_about(capsys: pytest.CaptureFixture[str]) -> None:
    reading = SlowReading(Clock())
    reading.header("m.gguf", 1 << 20)
    reading.done()
    assert capsys.readouterr().err == ""


def test_without_a_terminal_slow_reading_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    reading = SlowReading(clock)
    for clock.now in (1.0, 2.0, 3.0):
        reading.header("m.gguf", 3 << 20)
    reading.done()
    assert capsys.readouterr().err == "reading the header of m.gguf …\n"


def test_a_terminal_sees_one_line_that_goes_away(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    reading = SlowReading(clock)
    for clock.now, n_done in ((1.0, 5), (1.1, 6), (2.0, 9)):
        reading.scanned(n_done, 200)
    reading.done()
    lines = capsys.readouterr().err.split("\r\033[K")
    assert lines == [
        "",
        "reading the headers of the models: 5 of 200",
        "reading the headers of the models: 9 of 200",
        "",
    ]
