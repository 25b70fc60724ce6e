"""Waiting for another thread or process, without a test that asserts the clock."""

import time
from collections.abc import Callable

PATIENCE_S = 120.0
"""Seconds that a test waits before it calls something hung: a busy machine takes its time."""


def wait_until(is_true: Callable[[], object], what: str = "it") -> None:
    """Come back as soon as something is so, and fail when it never is."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, f"{what} did not happen in {PATIENCE_S:.0f} s"
        time.sleep(0.005)
