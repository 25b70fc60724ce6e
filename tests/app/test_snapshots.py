"""Every main screen as text, at three sizes: what changes on a screen shows in a diff.

KVCHAT_WRITE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/app/test_snapshots.py   writes them again.
"""

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.application import KvchatApp
from app.screens.chat import ChatScreen
from tests.support.fakes_app import NARROW, answered, make_conversation, ready, services, wait_until
from tests.support.fakes_client import CONFIGURATION, Script

SNAPSHOTS = Path(__file__).parent / "snapshots"
SIZES = (NARROW, (120, 40))
WIDEST = (200, 60)
MEASURED = "plan +0.3%"
"""Stands in the memory panel once all of it is known; narrow screens show another panel."""
HOME = Path("/home/user/kvchat")
"""The shown folder of files; nothing is there."""
NOW = 1_700_000_000.0
REPLY = """Three steps:

1. **Read** the header.
2. Count the `layers`.

```python
def kv_bytes(n_ctx: int) -> int:
    return n_ctx * 22_528
```
"""

Step = Callable[[Pilot[None], ChatScreen], Awaitable[None]]


async def answered_chat(pilot: Pilot[None], screen: ChatScreen) -> None:
    await answered(pilot, screen, "How large is a KV cache?")


def key(name: str, *before: Step) -> Step:
    async def press(pilot: Pilot[None], screen: ChatScreen) -> None:
        for step in before:
            await step(pilot, screen)
        await pilot.press(name)
        await wait_until(pilot, lambda: pilot.app.screen is not screen)

    return press


async def nothing(pilot: Pilot[None], screen: ChatScreen) -> None:
    del screen
    await pilot.pause()


SITUATIONS: dict[str, Step] = {
    "empty": nothing,
    "reply": answered_chat,
    "help": key("f1"),
    "presets": key("f3"),
    "compare": key("f4"),
    "cache": key("f6", answered_chat),
    "settings": key("f11"),
    "chats": key("ctrl+l", answered_chat),
    "models": key("ctrl+o"),
    "chat-settings": key("ctrl+s"),
}


@pytest.mark.parametrize(
    "size",
    [SIZES[0], *(pytest.param(size, marks=pytest.mark.slow) for size in (*SIZES[1:], WIDEST))],
    ids=lambda s: "x".join(map(str, s)),
)
@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_screen_is_as_it_was(
    situation: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.chdir(tmp_path)
    ticks = iter(range(10**9))
    controller, _ = make_conversation(tmp_path, Script((REPLY,)), clock=lambda: next(ticks) * 1e-6)
    app = KvchatApp(controller, services(HOME), configuration=CONFIGURATION)
    async with app.run_test(size=size) as pilot:
        screen = await ready(pilot)
        await wait_until(pilot, lambda: size == NARROW or MEASURED in text_of(pilot))
        await SITUATIONS[situation](pilot, screen)
        shown = await settled(pilot)
    path = SNAPSHOTS / f"{situation}-{size[0]}x{size[1]}.txt"
    if os.environ.get("KVCHAT_WRITE_SNAPSHOTS"):
        path.write_text(shown)
    assert shown == path.read_text()


async def settled(pilot: Pilot[None]) -> str:
    """The rows of the screen, once they stay as they are."""
    shown, n_equal = "", 0
    while n_equal < 5:
        await pilot.pause(0.05)
        before, shown = shown, text_of(pilot)
        n_equal = n_equal + 1 if shown == before else 0
    return shown


def text_of(pilot: Pilot[None]) -> str:
    strips = pilot.app.screen._compositor.render_strips()
    rows = [strip.text.rstrip() for strip in strips]
    return "\n".join(rows).rstrip() + "\n"
