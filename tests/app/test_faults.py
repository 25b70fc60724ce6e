"""An exception in any place of the screen ends nothing: the real application goes on after it."""

import asyncio
import stat
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style
from textual.app import ComposeResult
from textual.command import CommandList
from textual.events import Click, MouseDown
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from app import fault_reports, faults
from app.application import KvchatApp
from app.commands import Palette
from app.fault_reports import write_report
from app.paths import faults_dir
from app.screens.chat import ChatScreen
from app.screens.dialogs import AskLine, in_thread
from app.store.chats import ChatStore
from app.store.errors import StoreError
from app.widgets.panels import Panel
from engine.background import start_thread
from tests.support.fakes_app import WIDE, answered, make_app, ready, wait_until
from tests.support.fakes_client import Script
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.faults

SECRET = "what was written in a chat"


class Oops(Exception):  # noqa: N818  no error of kvchat's
    """Stands for every exception that nobody foresaw."""


def fail(*_: object, **__: object) -> Any:
    raise Oops(SECRET)


def reports() -> list[Path]:
    return sorted(faults_dir().glob("*.txt"))


async def seen(predicate: Callable[[], object]) -> None:
    """Wait without the pilot, which paints by itself and raises what that raises."""
    deadline = time.monotonic() + PATIENCE_S
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


def notices(app: KvchatApp) -> list[str]:
    return [each.message for each in app._notifications]


class Broken(ModalScreen[None]):
    """A dialog that fails at a given place."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where

    def compose(self) -> ComposeResult:
        if self._where == "compose":
            fail()
        yield BrokenPart(self._where)

    def on_mount(self) -> None:
        if self._where == "mount":
            fail()


class BrokenPart(Static):
    def __init__(self, where: str) -> None:
        super().__init__("part")
        self._where = where

    def on_mount(self) -> None:
        if self._where == "mount of a part":
            fail()

    def get_content_height(self, *_: Any) -> int:
        return fail() if self._where == "layout" else 1


async def by_key(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chat, "action_find", fail)
    await pilot.press("alt+s")


async def by_message(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ChatScreen, "on_text_area_changed", fail)
    await pilot.press("a")


async def in_a_widget(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(chat.composer), "_on_key", fail)
    await pilot.press("a")


async def by_timer(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    chat.set_timer(0.01, fail)
    chat.sidebar.set_interval(0.01, fail, repeat=5)


async def later(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    chat.call_later(fail)
    chat.call_next(fail)
    chat.call_after_refresh(fail)


async def each_frame(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(chat, "present", fail)
    patch.setattr(chat.outbox, "send_next", fail)


async def in_a_worker(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    chat.run_worker(fail, thread=True)


async def in_a_coroutine(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    async def failing() -> None:
        fail()

    chat.run_worker(failing())


async def from_a_thread(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    in_thread(chat, "test", lambda: 1, fail)


async def by_a_dialog(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    pilot.app.push_screen(AskLine("name"), fail)
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, AskLine))
    await pilot.press("x", "enter")


async def opening(
    where: str, pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch
) -> None:
    pilot.app.push_screen(Broken(where))


async def a_panel(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Panel, "content_strip", fail)
    for panel in chat.query(Panel):
        panel.forget_strips()
        panel.refresh()


async def the_transcript(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(chat.transcript), "content_strip", fail)
    chat.transcript.forget_strips()
    chat.transcript.refresh()


async def the_theme(pilot: Pilot[None], chat: ChatScreen, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(pilot.app.stylesheet), "update", fail)
    pilot.app.theme = "textual-light"


PLACES: dict[str, Callable[..., Any]] = {
    "key": by_key,
    "message": by_message,
    "widget": in_a_widget,
    "timer": by_timer,
    "later": later,
    "frame": each_frame,
    "worker": in_a_worker,
    "coroutine": in_a_coroutine,
    "thread": from_a_thread,
    "dialog": by_a_dialog,
    "compose": partial(opening, "compose"),
    "mount": partial(opening, "mount"),
    "mount of a part": partial(opening, "mount of a part"),
    "layout of a dialog": partial(opening, "layout"),
    "panel": a_panel,
    "transcript": the_transcript,
    "theme": the_theme,
}


@pytest.mark.parametrize("place", PLACES)
async def test_the_chat_goes_on_after_a_fault_and_shows_where_it_was(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = make_app(tmp_path, Script(replies=("the answer",)))
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        chat = await ready(pilot)
        with monkeypatch.context() as patch:
            await PLACES[place](pilot, chat, patch)
            await seen(reports)
            await seen(lambda: any(reports()[0].stem in n for n in notices(app)))
            await asyncio.sleep(0.3)
        await wait_until(pilot, lambda: app.screen is chat)
        await answered(pilot, chat, "a question")
        assert app.is_running
        history = chat.conversation.history
        assert [m.content for m in history.store.path_to(history.head_id)] == [
            "a question",
            "the answer",
        ]
        assert len(notices(app)) <= 3
    assert not app.return_code
    for path in reports():
        text = path.read_text()
        assert "Oops" in text
        assert SECRET not in text
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_a_fault_that_comes_again_and_again_is_shown_once(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    failed: list[int] = []

    def fail_again() -> None:
        failed.append(1)
        fail()

    async with app.run_test(size=WIDE, notifications=True) as pilot:
        chat = await ready(pilot)
        chat.sidebar.set_interval(0.01, fail_again)
        await wait_until(pilot, lambda: len(failed) > 5)
        assert len(notices(app)) == 1


async def test_an_error_of_kvchat_in_a_handler_is_a_notice_with_its_title(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = make_app(tmp_path)

    def refuse(*_: object) -> None:
        raise StoreError("no space is left")

    async with app.run_test(size=WIDE, notifications=True) as pilot:
        chat = await ready(pilot)
        monkeypatch.setattr(chat, "action_find", refuse)
        await pilot.press("alt+s")
        await wait_until(pilot, lambda: notices(app))
        assert [each.title for each in app._notifications] == [StoreError.title]
        assert notices(app) == ["no space is left"]
        assert reports() == []


async def test_a_chat_that_cannot_be_laid_out_ends_after_everything_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put("not sent yet")
        await pilot.pause()
        monkeypatch.setattr(ChatScreen, "arrange", fail)
        for _ in range(faults.N_IN_A_ROW):
            chat.refresh(layout=True)
            await asyncio.sleep(0.1)
        await seen(lambda: not app._running)
    assert app.return_code == 1
    printed = capsys.readouterr().err
    assert str(reports()[0].name) in printed.replace("\n", "")
    assert "Traceback" not in printed
    app.conversation.history.store.close()
    with ChatStore(tmp_path / "chats.db") as store:
        assert [unsent.text for unsent in store.unsent_texts().values()] == ["not sent yet"]


def raised(make: Callable[[], object]) -> Exception:
    try:
        make()
    except Exception as error:  # noqa: BLE001  whatever it is
        return error
    raise AssertionError


def test_reports_are_bounded_in_number_and_size_and_hold_no_message(tmp_path: Path) -> None:
    def deep(n: int) -> None:
        if n:
            deep(n - 1)
        exec(f"raise KeyError({SECRET!r})")

    for n in range(fault_reports.N_REPORTS + 5):
        code = compile(f"def at_{n}(): 1 / 0\nat_{n}()", f"file{n}.py", "exec")
        write_report(tmp_path, raised(partial(exec, code)), doing="test")
    assert len([*tmp_path.iterdir()]) == fault_reports.N_REPORTS
    path = write_report(tmp_path, raised(partial(deep, 900)), doing="test").path
    assert path is not None
    assert path.stat().st_size < 1 << 15
    assert SECRET not in path.read_text()


def test_a_report_that_cannot_be_written_is_no_second_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = write_report(tmp_path / "file", raised(fail), doing="test")
    assert report.path is None
    assert report.reference in report.location


async def test_a_fault_of_a_thread_is_a_notice_with_its_reference(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await ready(pilot)
        start_thread(fail, name="of a test")
        await wait_until(pilot, lambda: notices(app))
        assert reports()[0].stem in notices(app)[0]
        assert "of a test" in reports()[0].read_text()


async def test_a_screen_that_is_answered_twice_or_under_another_is_the_one_that_closes(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        below, dialog, over = (AskLine(name, name) for name in ("below", "dialog", "over"))
        results: list[object] = []
        for screen in (below, dialog, over):
            await app.push_screen(screen, results.append)
        dialog.dismiss("yes")
        dialog.dismiss("yes again")
        await pilot.pause()
        assert results == ["yes"]
        assert app.screen is below
        below.dismiss("yes")
        below.dismiss("yes again")
        await pilot.pause()
        assert results == ["yes", "yes"]
        assert app.screen is app.chat


async def test_the_mouse_may_press_where_a_notice_has_just_gone(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        await ready(pilot)
        app.notify("a notice")
        await wait_until(pilot, lambda: notice_at(app.screen) is not None)
        notice = notice_at(app.screen)
        assert notice is not None
        x, y = notice.region.offset
        await notice.remove()
        app.screen._forward_event(MouseDown(None, x, y, 0, 0, 1, False, False, False, x, y))
        assert reports() == []


async def test_a_click_on_a_command_that_has_just_gone_does_nothing(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+p")
        await wait_until(pilot, lambda: isinstance(app.screen, Palette))
        commands = app.screen.query_one(CommandList)
        gone = Style.from_meta({"option": commands.option_count + 9})
        commands.post_message(Click(commands, 1, 1, 0, 0, 1, False, False, False, 1, 1, style=gone))
        await pilot.pause()
        assert reports() == []


def notice_at(screen: Screen[object]) -> Widget | None:
    """The last notice that a screen shows."""
    rack = screen.get_child_by_id("textual-toastrack")
    return next(iter(rack.walk_children(Widget, reverse=True)), None)
