import asyncio
import threading

import pytest

from app import threads
from app.threads import DaemonExecutor


async def leave_a_call(held: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonExecutor())
    assert await loop.run_in_executor(None, lambda: 2 + 2) == 4
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(None, lambda: 1 // 0)
    begun = threading.Event()
    loop.run_in_executor(None, lambda: (begun.set(), held.wait()))
    await asyncio.to_thread(begun.wait)


def test_a_program_ends_while_a_call_of_it_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "GRACE_S", 0.0)
    held = threading.Event()
    program = threading.Thread(target=lambda: asyncio.run(leave_a_call(held)), daemon=True)
    program.start()
    program.join(10)
    assert not program.is_alive()
    [call] = [each for each in threading.enumerate() if each.name == "kvchat-call"]
    assert call.daemon
    held.set()


def test_the_end_waits_a_moment_for_calls_that_are_almost_done() -> None:
    executor = DaemonExecutor()
    held = threading.Event()
    future = executor.submit(lambda: (held.wait(), "removed what it began"))
    held.set()
    executor.shutdown()
    assert future.done()
