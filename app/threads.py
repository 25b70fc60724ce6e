"""Threads of the screens: none keeps a program alive, none calls a screen that was closed."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from textual.screen import Screen
from textual.worker import get_current_worker

from engine.background import start_thread

P = ParamSpec("P")
T = TypeVar("T")

GRACE_S = 1.0
"""Seconds that all calls together may run at the end, for example to remove a partial install."""


class DaemonExecutor(ThreadPoolExecutor):
    """Runs each call in a daemon thread of its own.

    asyncio takes a `ThreadPoolExecutor` only, whose own threads keep a program alive until the last
    call is over: a cancelled download, for minutes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: set[threading.Thread] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()
        call = partial(_run, future, partial(fn, *args, **kwargs))
        self._calls = {each for each in self._calls if each.is_alive()}
        self._calls.add(start_thread(call, name="kvchat-call"))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        deadline = time.monotonic() + GRACE_S
        for thread in self._calls if wait else ():
            thread.join(max(deadline - time.monotonic(), 0.0))
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def _run(future: "Future[T]", call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  handed to the caller
        future.set_exception(error)
    else:
        future.set_result(result)


def is_open(screen: Screen[Any]) -> bool:
    """Whether a screen still has its widgets.

    A screen that closes leaves the stack first, loses its widgets then, and is detached last
    (Textual 8), so `is_attached` alone comes too late. An app that ends takes the widgets away
    while its screens are on the stack.
    """
    return screen.is_attached and screen.app.is_running and screen in screen.app.screen_stack


def call_if_open(
    screen: Screen[Any], take: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call `take` in the thread of the app, and wait for it; to be called in a worker's thread.

    Nothing happens where the screen was closed or another worker took this one's place.
    """
    worker = get_current_worker()

    def call() -> None:
        if not worker.is_cancelled and is_open(screen):
            take(*args, **kwargs)

    if screen.is_attached:
        screen.app.call_from_thread(call)
