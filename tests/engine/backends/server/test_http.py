import pytest

from engine.backends.server.http import TooLongError, events


def test_an_event_of_empty_lines_without_end_is_too_long() -> None:
    with pytest.raises(TooLongError):
        [*events([b"data:"] * 1_001, limit=1_000)]


def test_the_bound_is_that_of_one_event() -> None:
    assert [*events([b"data: abc", b""] * 500, limit=4)] == [b"abc"] * 500
