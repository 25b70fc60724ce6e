import threading

import pytest

from engine.clock import Pacer, in_time
from tests.support.clock import Clock


def test_work_is_due_once_an_interval() -> None:
    clock = Clock()
    pacer = Pacer(1.0, clock=clock)
    assert pacer.is_due()
    with pacer.work():
        pass
    assert not pacer.is_due()
    clock.at += 1.0
    assert pacer.is_due()


def test_slow_work_is_done_less_often() -> None:
    clock = Clock()
    pacer = Pacer(0.1, max_share=0.05, clock=clock)
    with pacer.work():
        clock.at += 0.05
    clock.at += 0.5
    assert not pacer.is_due()
    clock.at += 0.5
    assert pacer.is_due()


def test_what_takes_longer_is_left_and_errors_come_through() -> None:
    over = threading.Event()
    with pytest.raises(TimeoutError):
        in_time(over.wait, 0.05)
    over.set()
    assert in_time(lambda: 3, 5) == 3
    with pytest.raises(ZeroDivisionError):
        in_time(lambda: 1 // 0, 5)
