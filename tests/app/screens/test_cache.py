"""The screen of saved states, around a scripted engine and a real chat database."""

import time
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Static

from app.cache import owner_of
from app.render.lines import plain
from app.screens.cache import NOTHING_SAVED, CacheScreen
from app.screens.dialogs import AskYes
from app.store.chats import ChatStore
from app.widgets.ink import LinesView
from app.widgets.select_list import SelectList
from engine.cache.report import CacheCounts, CacheEntry, CacheNote, CacheReport, TierName, TierUse
from engine.events import TiersChanged
from engine.memory.units import MIB
from tests.support.chats import add_chat
from tests.support.fakes_app import WIDE, make_app, ready, wait_until
from tests.support.fakes_client import ScriptedClient

BOTH: tuple[TierName, ...] = ("warm", "cold")


def entry(
    key: str,
    owners: tuple[int, ...] = (1,),
    *,
    start: int = 0,
    end: int = 300,
    tiers: tuple[TierName, ...] = BOTH,
    is_pinned: bool = False,
    age_s: float = 130.0,
) -> CacheEntry:
    return CacheEntry(
        key, start, end, 7 * MIB, tiers, tuple(owner_of(i) for i in owners), is_pinned, 3,
        time.time() - age_s, 1.5,
    )  # fmt: skip


ENTRIES = (
    entry("b", (1,), start=300, end=1104, tiers=("cold",)),
    entry("c", (2,), start=300, end=500, is_pinned=True, age_s=160),
    entry("a", (1, 2), age_s=170),
)


def report(
    entries: tuple[CacheEntry, ...] = ENTRIES, notes: tuple[CacheNote, ...] = ()
) -> CacheReport:
    tiers = (
        TierUse("hot", 1, 1104, 27 * MIB, 180 * MIB, 8192),
        TierUse("warm", 2, 500, 14 * MIB, 1024 * MIB),
        TierUse("cold", 3, 1304, 21 * MIB, 8192 * MIB),
    )
    return CacheReport(tiers, CacheCounts(n_hits=5, n_evictions=2), entries, notes)


def add_chats(tmp_path: Path, *titles: str) -> None:
    with ChatStore(tmp_path / "chats.db") as store:
        for title in titles:
            add_chat(store, title)


async def opened(pilot: Pilot[None], client: ScriptedClient, report: CacheReport) -> CacheScreen:
    screen = await ready(pilot)
    client.emit(TiersChanged(report))
    await wait_until(pilot, lambda: screen.conversation.snapshot().tiers is not None)
    await pilot.press("f6")
    await wait_until(pilot, lambda: isinstance(pilot.app.screen, CacheScreen))
    cache = pilot.app.screen
    assert isinstance(cache, CacheScreen)
    await pilot.pause()
    return cache


def rows(screen: CacheScreen) -> list[str]:
    rows = screen.query_one(SelectList)
    return [rows.content_strip(y, rows.size.width).text.rstrip() for y in range(rows.size.height)]


def panel(screen: CacheScreen, name: str) -> str:
    return "\n".join(map(plain, screen.query_one(f"#{name}", LinesView).lines))


async def test_tab_lists_states_and_keeps_the_place(tmp_path: Path) -> None:
    add_chats(tmp_path, "One", "Two")
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(pilot, client, report())
        await pilot.press("j", "tab")
        shown = rows(screen)
        assert "2 chats: One" in shown[3]
        assert "300-1,104" in shown[1]
        assert "200 of its own, from 300 to 500" in panel(screen, "cache-detail")
        await pilot.press("home", "tab")
        assert "▸ One" in "\n".join(rows(screen))


async def test_a_chat_is_pinned_whole_and_only_where_it_is_not_yet_and_states_one_by_one(
    tmp_path: Path,
) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(pilot, client, report())
        screen.query_one(SelectList).mark(owner_of(2))
        await pilot.press("p")
        assert client.managed == [("pin", "a")]
        await pilot.press("tab", "home", "p", "j", "p")
        assert client.managed[1:] == [("pin", "b"), ("unpin", "c")]


async def test_d_drops_a_state_at_once_and_asks_before_a_pinned_or_shared_one(
    tmp_path: Path,
) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(pilot, client, report())
        await pilot.press("tab", "d")
        assert client.managed == [("drop", "b")]
        for _ in range(2):
            await pilot.press("j", "d")
            assert isinstance(app.screen, AskYes)
            await pilot.press("n")
        assert client.managed == [("drop", "b")]
        await pilot.press("d", "y")
        await wait_until(pilot, lambda: screen.is_current)
        assert client.managed == [("drop", "b"), ("drop", "a")]
        await pilot.press("tab")
        for owner, question in ((1, "Delete 1 state that only “"), (2, "uses (pinned)?")):
            screen.query_one(SelectList).mark(owner_of(owner))
            await pilot.press("d")
            assert isinstance(app.screen, AskYes)
            assert question in str(app.screen.query_one(Static).render())
            await pilot.press("n")


async def test_without_states_of_its_own_nothing_of_a_chat_is_deleted(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    shared = (entry("a", (1, 2)),)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, client, report(shared))
        await pilot.press("d")
        await wait_until(pilot, lambda: any("other chats" in n.message for n in app._notifications))
        assert client.managed == []


async def test_without_any_state_its_keys_give_the_reason(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, client, report(()))
        for key in ("p", "c"):
            app._notifications.clear()
            await pilot.press(key)
            await wait_until(
                pilot, lambda: NOTHING_SAVED in {n.message for n in app._notifications}
            )
        assert client.managed == []


async def test_v_verifies_every_state_of_a_chat(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(pilot, client, report())
        screen.query_one(SelectList).mark(owner_of(1))
        await pilot.press("v")
        assert client.managed == [("verify", "b"), ("verify", "a")]


async def test_everything_is_cleared_only_after_a_yes(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, client, report())
        await pilot.press("c", "n")
        assert client.managed == []
        await pilot.press("c", "y")
        assert client.managed == [("clear", "")]


async def test_what_a_check_found_is_seen_on_a_small_terminal(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    notes = (CacheNote(1.0, "pinned"), CacheNote(2.0, "sound"))
    async with app.run_test(size=(60, 16)) as pilot:
        screen = await opened(pilot, client, report(notes=notes))
        log = screen.query_one("#cache-log", LinesView)
        assert log.content_strip(0, log.size.width).text.rstrip().endswith("sound")
        assert log.region in screen.region
        assert screen.query_one(SelectList).size.height >= 3


async def test_without_a_model_the_screen_shows_what_to_do(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, has_model=False)
    async with app.run_test(size=WIDE) as pilot:
        await pilot.pause()
        app.push_screen(CacheScreen(app.conversation))
        await wait_until(pilot, lambda: isinstance(app.screen, CacheScreen))
        await pilot.pause()
        screen = app.screen
        assert isinstance(screen, CacheScreen)
        assert "No model is loaded" in rows(screen)[0]
        await pilot.press("c", "p")
        assert client.managed == []
        assert "load a model to" in "".join(n.message for n in app._notifications)
