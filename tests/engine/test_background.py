"""No thread ends in silence."""

import ast
import threading
from pathlib import Path

import pytest

from engine.background import ThreadFault, start_thread

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


def failing() -> None:
    raise ValueError("no such thing")


def test_a_fault_is_reported_and_then_passed_to_the_owner(thread_faults: list[ThreadFault]) -> None:
    owner: list[ThreadFault] = []
    start_thread(failing, name="worker", on_fault=owner.append).join(WAIT_S)
    (fault,) = thread_faults
    assert owner == [fault]
    assert (fault.thread, fault.will_restart) == ("worker", False)
    assert fault.reference in str(fault)
    assert "no such thing" in fault.report
    assert "in failing" in fault.report


def test_a_body_is_started_again_after_each_pause_and_then_no_more(
    thread_faults: list[ThreadFault],
) -> None:
    start_thread(failing, name="worker", pauses_s=(0.0, 0.0)).join(WAIT_S)
    assert [fault.will_restart for fault in thread_faults] == [True, True, False]


def test_a_body_that_serves_jobs_goes_on_with_the_next(thread_faults: list[ThreadFault]) -> None:
    jobs, done = [0, 1, 0, 2], []

    def body() -> None:
        while jobs:
            done.append(1 // jobs.pop(0))

    start_thread(body, name="worker", pauses_s=(0.0, 0.0)).join(WAIT_S)
    assert done == [1, 0]
    assert len(thread_faults) == 2


def test_a_pause_ends_with_its_owner(thread_faults: list[ThreadFault]) -> None:
    stopping = threading.Event()
    stopping.set()
    thread = start_thread(failing, name="worker", pauses_s=(3600.0,), stopping=stopping)
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert len(thread_faults) == 1


def test_an_owner_that_fails_too_does_not_keep_the_body_from_going_on(
    thread_faults: list[ThreadFault], monkeypatch: pytest.MonkeyPatch
) -> None:
    printed: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: printed.append(str(args.exc_value)))

    def raises(fault: ThreadFault) -> None:
        raise RuntimeError(f"cannot report {fault.thread}")

    start_thread(failing, name="worker", on_fault=raises, pauses_s=(0.0,)).join(WAIT_S)
    assert len(thread_faults) == 2
    assert printed == ["cannot report worker"] * 2


def test_every_thread_of_the_engine_is_started_by_it() -> None:
    made = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "engine").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Thread"
    ]
    assert made == ["engine/background.py"]
