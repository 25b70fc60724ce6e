"""What stands beside the messages: the sidebar, what an empty chat offers, and find."""

from pathlib import Path

from app.render.lines import plain
from app.screens.chat import ChatScreen
from app.screens.chats import ChatsScreen
from tests.support.fakes_app import NARROW, answered, opened, wait_until
from tests.support.fakes_client import Script

HUGE = (180, 50)


def listed(screen: ChatScreen) -> list[str]:
    return [plain(line).strip() for line in screen.sidebar.chats.lines]


async def test_chats_stand_beside_a_wide_screen_and_a_key_hides_them(tmp_path: Path) -> None:
    async with opened(tmp_path, size=HUGE) as (_, _, pilot, screen):
        assert screen.sidebar.display
        await answered(pilot, screen, "first")
        await pilot.press("ctrl+n")
        await answered(pilot, screen, "second")
        await wait_until(pilot, lambda: len(screen.sidebar.chats.rows) == 2)
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: not screen.sidebar.display)
        assert screen.composer.has_focus
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: screen.sidebar.chats.has_focus)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: screen.conversation.history.title == "first")
        assert screen.composer.has_focus


async def test_the_sidebar_replaces_the_panels_or_is_a_dialog(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        assert not screen.sidebar.display
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: screen.sidebar.display)
        assert not screen.query_one("#cockpit").display
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: screen.query_one("#cockpit").display)
        await pilot.resize_terminal(*NARROW)
        await pilot.pause()
        await pilot.press("ctrl+b")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen))


async def test_a_chat_is_pinned_put_into_a_folder_and_found(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("a lighthouse stands here",)), size=HUGE) as (
        _,
        _,
        pilot,
        screen,
    ):
        for text in ("first", "second", "third"):
            await pilot.press("ctrl+n")
            await answered(pilot, screen, text)
        chats = screen.conversation.history
        for typed, folder in (("my   work", "my work"), (".", ""), ("work", "work")):
            screen.composer.put(f"/folder {typed}")
            await pilot.press("enter")
            await wait_until(pilot, lambda name=folder: chats.chat and chats.chat.folder == name)
        screen.composer.put("/rename the third")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "the third" in " ".join(listed(screen)))
        await wait_until(pilot, lambda: screen.transcript.frame_title == "the third")
        screen.sidebar.chats.focus()
        screen.sidebar.chats.mark(screen.sidebar.chats.rows[-1].key)
        await pilot.press("p")
        await wait_until(pilot, lambda: "pinned" in listed(screen))
        rows = [row.split()[0] if row else "" for row in listed(screen)]
        assert rows[0] == "pinned"
        assert "work" in rows
        assert rows[-2] == "others"
        await pilot.press("slash", *"lighthouse")
        await wait_until(pilot, lambda: len(listed(screen)) == 6)
        await pilot.press("escape")
        await wait_until(pilot, lambda: "pinned" in listed(screen))


async def test_the_open_chat_can_be_deleted_in_the_sidebar(tmp_path: Path) -> None:
    async with opened(tmp_path, size=HUGE) as (_, _, pilot, screen):
        await answered(pilot, screen, "first")
        screen.composer.put("unsent")
        screen.sidebar.chats.focus()
        await pilot.press("d", "y")
        await wait_until(pilot, lambda: screen.conversation.history.chat is None)
        await wait_until(pilot, lambda: screen.beginning.display)
        assert screen.sidebar.chats.rows == ()
        assert screen.composer.text == "unsent"


async def test_an_empty_chat_offers_recent_chats_and_examples(tmp_path: Path) -> None:
    async with opened(tmp_path, size=NARROW) as (_, _, pilot, screen):
        await wait_until(pilot, lambda: screen.beginning.display)
        assert len(screen.beginning.rows) == 3
        await pilot.press("f9")
        await pilot.pause()
        assert not screen.beginning.region.height, "the panels have the space on their tab"
        await pilot.press("f9", "f9")
        await answered(pilot, screen, "earlier question")
        await wait_until(pilot, lambda: not screen.beginning.display)
        await pilot.press("ctrl+n")
        beginning = screen.beginning
        await wait_until(pilot, lambda: "earlier question" in plain(beginning.lines[0]))
        await pilot.press("down", "down", "enter")
        assert screen.composer.text.startswith("Explain what a KV cache is")
        assert screen.composer.has_focus
        await pilot.press("ctrl+c", "down", "up", "enter")
        await wait_until(pilot, lambda: screen.conversation.history.title == "earlier question")


async def test_find_goes_from_place_to_place_and_marks_them(tmp_path: Path) -> None:
    script = Script(replies=("a Needle here\n\nhay\n\nand a needle there", "only hay"))
    async with opened(tmp_path, script) as (_, _, pilot, screen):
        await answered(pilot, screen, "the needle?")
        await answered(pilot, screen, "more")
        screen.composer.put("/find needle")
        await pilot.press("enter")
        await wait_until(pilot, lambda: screen.find.display)
        count = screen.query_one("#find-count")
        await wait_until(pilot, lambda: "2 of 2 messages" in str(count.render()))
        question, reply = screen.transcript.keys_with("NEEDLE")
        assert screen.transcript.selected == reply
        assert len(screen.transcript.lines_with(reply, "needle")) == 2
        await pilot.press("up")
        assert screen.transcript.selected == reply, "the first place in the same message"
        await pilot.press("up")
        assert screen.transcript.selected == question
        await pilot.press("down")
        assert screen.transcript.selected == reply
        screen.action_find("not there")
        await wait_until(pilot, lambda: "nothing found" in str(count.render()))
        await pilot.press("escape")
        assert not screen.find.display
        await pilot.press("slash")
        await wait_until(pilot, lambda: screen.find.display)
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: screen.beginning.display)
        assert screen.transcript.is_following, "the new chat has no place to stay at"
