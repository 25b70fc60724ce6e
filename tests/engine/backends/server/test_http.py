import time
from collections.abc import Iterator

import pytest

from engine.backends.server.http import TooLongError, events, parts_as_they_come


def test_reading_rests_behind_a_part_that_had_to_be_waited_for_and_no_other() -> None:
    rests: list[float] = []

    def sent() -> Iterator[bytes]:
        yield from [b"there"] * 50
        time.sleep(0.01)
        yield b"late"
        yield from [b"there"] * 50

    assert len([*parts_as_they_come(sent(), rests.append)]) == 101
    assert 1 <= len(rests) < 50, "a part that is there is read at once"


def test_an_event_of_empty_lines_without_end_is_too_long() -> None:
    with pytest.raises(TooLongError):
        [*events([b"data:"] * 1_001, limit=1_000)]


def test_the_bound_is_that_of_one_event() -> None:
    assert [*events([b"data: abc", b""] * 500, limit=4)] == [b"abc"] * 500
