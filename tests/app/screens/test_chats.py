import json
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import Input

from app.application import KvchatApp
from app.render.lines import plain
from app.screens import chat_list
from app.screens.chat import ChatScreen
from app.screens.chats import ChatsScreen
from app.screens.dialogs import AskLine, AskYes
from app.store.chats import ChatStore
from app.store.records import Chat
from app.widgets.ink import InkLines
from app.widgets.select_list import MARKER_WIDTH, SelectList
from engine.cache.report import CacheEntry, CacheReport
from engine.events import TiersChanged
from tests.support import chats as stored
from tests.support.fakes_app import (
    WIDE,
    ask,
    make_app,
    make_conversation,
    opened,
    ready,
    services,
    wait_until,
)  # fmt: skip
from tests.support.fakes_client import CONFIGURATION, Script


def add_chat(store: ChatStore, *texts: str, title: str = "") -> Chat:
    """A chat of these messages, question and reply by turns."""
    chat = stored.add_chat(store, Chat(title=title or texts[0], model_path="Tiny.gguf"))
    parent = None
    for i, text in enumerate(texts):
        message = stored.add_message(store, chat.id, parent, "assistant" if i % 2 else "user", text)
        if i % 2:
            ended = replace(message, token_ids=(1, 2, 3), vocabulary_id="tiny", finish_reason="end")
            store.finish_message(ended)
        parent = message.id
    return store.chat(chat.id)


def rows(app: KvchatApp) -> list[str]:
    """The text of each row, without the sign of the marked one."""
    chats = app.screen.query_one(SelectList)
    width = chats.size.width - MARKER_WIDTH
    lines = [(row.line(width), row.below(width) if row.below else ()) for row in chats.rows]
    return ["\n".join(map(plain, filter(None, both))).rstrip() for both in lines]


def shown_detail(app: KvchatApp) -> str:
    return "\n".join(map(plain, app.screen.query_one("#chats-detail", InkLines).lines))


async def test_a_row_has_time_size_and_cache_tiers(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    chat = add_chat(app.conversation.history.store, "about rivers", "they flow")
    entry = CacheEntry("0" * 16, 0, 2048, 5 << 20, ("warm", "cold"), (f"chat:{chat.id}",),
                       False, 1, 0.0, 1.0)  # fmt: skip
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        client.emit(TiersChanged(CacheReport(entries=(entry,))))
        await wait_until(pilot, lambda: app.conversation.snapshot().tiers is not None)
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: "2 msg" in rows(app)[0])
        assert "about rivers" in rows(app)[0]
        assert rows(app)[0].endswith("·wc")
        await wait_until(pilot, lambda: "warm" in shown_detail(app))
        assert "cached tokens: 2.0k warm, 2.0k cold · 5 MiB" in shown_detail(app)


async def test_a_search_finds_messages_and_enter_opens_them(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    store = app.conversation.history.store
    long = [f"filler {i}" for i in range(60)]
    long[11] = "line\n\n" * 40 + "a hidden needle in it"
    chat = add_chat(store, *long, title="long one")
    add_chat(store, "another", "nothing here")
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        await pilot.press("ctrl+f")
        assert isinstance(app.screen, ChatsScreen)
        await pilot.press(*"needle")
        await wait_until(pilot, lambda: len(rows(app)) == 1 and "needle" in rows(app)[0])
        assert "long one" in rows(app)[0]
        await pilot.press("enter")
        await wait_until(pilot, lambda: "needle" in screen.transcript.text)
        await pilot.pause()
        assert app.conversation.history.is_shown(chat.id)
        assert screen.transcript.selected == app.conversation.history.visible()[11].id
        top, height = screen.transcript.scroll_offset.y, screen.transcript.size.height
        [line] = [y for y, t in enumerate(screen.transcript.text.split("\n")) if "needle" in t]
        assert top <= line < top + height, "the line that was found is in sight"


async def test_a_hit_on_another_branch_shows_that_branch(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    store = app.conversation.history.store
    chat = add_chat(store, "question", "first answer with a walrus")
    assert chat.head_id is not None
    first = store.message(chat.head_id)
    other = stored.add_message(store, chat.id, first.parent_id, "assistant", "second answer")
    store.update_chat(chat.id, head_id=other.id)
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        screen.open_chat(chat.id)
        await wait_until(pilot, lambda: "second answer" in screen.transcript.text)
        await pilot.press("ctrl+f", *"walrus")
        await wait_until(pilot, lambda: "other branch" in "".join(rows(app)))
        await pilot.press("down")
        assert isinstance(app.screen.focused, SelectList)
        await pilot.press("enter")
        await wait_until(pilot, lambda: "walrus" in screen.transcript.text)
        await wait_until(pilot, lambda: screen.transcript.selected == first.id)


async def test_a_search_without_result_is_reported(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    add_chat(app.conversation.history.store, "one")
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+f", *'"no such')
        await wait_until(pilot, lambda: "No chat contains" in shown_detail(app))
        await pilot.press("enter")
        assert isinstance(app.screen, ChatsScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, ChatScreen)


async def test_chats_go_into_the_archive_and_come_back(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    store = app.conversation.history.store
    chat = add_chat(store, "put away")
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+l", "a")
        assert rows(app) == []
        assert store.chat(chat.id).archived_at is not None
        await pilot.press("A")
        assert "put away" in rows(app)[0]
        await pilot.press("a")
        assert rows(app) == []
        await pilot.press("A")
        assert "put away" in rows(app)[0]


@pytest.mark.parametrize("ending", ["md", "jsonl"])
async def test_an_export_asks_before_it_replaces_a_file(tmp_path: Path, ending: str) -> None:
    app, _ = make_app(tmp_path)
    add_chat(app.conversation.history.store, "to keep", "saved answer")
    path = tmp_path / f"chat.{ending}"
    path.write_text("precious")
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+l", "x")
        assert isinstance(app.screen, AskLine)
        box = app.screen.query_one(Input)
        assert box.value == "to-keep.md"
        box.value = str(path)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, AskYes))
        await pilot.press("n")
        assert path.read_text() == "precious"
        await pilot.press("x")
        app.screen.query_one(Input).value = str(path)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, AskYes))
        await pilot.press("y")
        await wait_until(pilot, lambda: "saved answer" in path.read_text())
    if ending == "jsonl":
        assert all(json.loads(line) for line in path.read_text().splitlines())


async def test_deleting_removes_the_cached_states(tmp_path: Path) -> None:
    conversation, client = make_conversation(tmp_path)
    forgotten: list[str] = []
    given = replace(services(tmp_path), forget_on_disk=forgotten.append)
    app = KvchatApp(conversation, given, configuration=CONFIGURATION)
    chat = add_chat(conversation.history.store, "to go")
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+l", "d")
        assert isinstance(app.screen, AskYes)
        await pilot.press("y")
        await wait_until(pilot, lambda: forgotten == [f"chat:{chat.id}"])
        assert client.forgotten == [f"chat:{chat.id}"]
        assert conversation.history.store.list_chats() == []


async def test_the_chat_that_is_being_answered_is_marked_and_not_deleted(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("word " * 300,), tps=20)) as (
        app,
        _,
        pilot,
        screen,
    ):
        await ask(pilot, screen, "busy")
        await pilot.press("ctrl+n", "ctrl+l")
        assert "answering" in rows(app)[0]
        await pilot.press("d")
        assert isinstance(app.screen, ChatsScreen)


async def test_a_long_list_has_its_count_and_grows_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_list, "PAGE", 2)
    app, _ = make_app(tmp_path)
    for number in range(5):
        add_chat(app.conversation.history.store, f"chat {number}")
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+l")
        await wait_until(pilot, lambda: len(rows(app)) == 2)
        dialog = app.screen.query_one(".dialog")
        assert dialog.border_title == "chats, the 2 most recent of 5"
        await pilot.press("down")
        await wait_until(pilot, lambda: len(rows(app)) == 4)
        assert app.screen.query_one(SelectList).index == 1
        await pilot.press("end")
        await wait_until(pilot, lambda: len(rows(app)) == 5)
        assert dialog.border_title == "chats"
