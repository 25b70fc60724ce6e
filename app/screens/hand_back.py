"""What a thread worker of a screen hands back: taken while the screen is open, dropped after."""

from collections.abc import Callable
from typing import Any, ParamSpec

from textual.screen import Screen
from textual.worker import get_current_worker

P = ParamSpec("P")


def is_open(screen: Screen[Any]) -> bool:
    """Tell whether a screen still has its widgets.

    A screen that closes leaves the stack first, loses its widgets then, and is detached last
    (Textual 8), so `is_attached` alone comes too late. An app that ends takes the widgets away
    while its screens are on the stack.
    """
    return screen.is_attached and screen.app.is_running and screen in screen.app.screen_stack


def hand_back(
    screen: Screen[Any], take: Callable[P, object], *args: P.args, **kwargs: P.kwargs
) -> None:
    """Call `take` in the thread of the app, and wait for it.

    Nothing happens where the screen was closed or another worker took this one's place.
    Call it in a worker's thread.
    """
    worker = get_current_worker()

    def call() -> None:
        if not worker.is_cancelled and is_open(screen):
            take(*args, **kwargs)

    if screen.is_attached:
        screen.app.call_from_thread(call)
