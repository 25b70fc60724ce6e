from functools import partial
from pathlib import Path

from textual import events
from textual.geometry import Region
from textual.widgets._toast import ToastRack

from app.chat.entries import Speaker
from app.render.lines import plain
from app.screens.chat import NEEDS_MODEL, NEEDS_QUESTION, NEEDS_REPLY, ChatScreen
from app.store.chats import ChatStore
from app.store.records import UnsentText
from app.widgets.transcript import Transcript
from engine.configuration import ControllerName, PredictorName
from tests.support.chats import add_chat
from tests.support.fakes_app import WIDE, answered, ask, make_app, opened, ready, wait_until
from tests.support.fakes_client import Script

HARD_REPLY = """Some **text**.

| a | b |
|---|---|
| 1 | 2 |
```python
print("in the fence")
```
after it [bold red]no markup[/bold red] \x1b[31m\u202ehidden
"""


def notices(screen: ChatScreen) -> list[str]:
    return [notice.message for notice in screen.app._notifications]


async def test_a_streamed_reply_has_its_table_and_its_fence(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Script(replies=(HARD_REPLY,), tps=400)) as (_, _, pilot, screen):
        await answered(pilot, screen, "go")
        text = screen.transcript.text
    for part in ("a │ b", "1 │ 2", 'print("in the fence")', "[bold red]no markup[/bold red]"):
        assert part in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "␛[31m\ufffdhidden" in text


async def test_hostile_text_of_the_user_is_shown_as_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, _, pilot, screen):
        await answered(pilot, screen, "[/x] [bold]\x1b[2J")
        assert "[/x] [bold]␛[2J" in screen.transcript.text
        assert screen.transcript.frame_title == "[/x] [bold]␛[2J"


async def test_enter_sends_and_ctrl_j_begins_a_line(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, screen):
        await pilot.press("a", "ctrl+j", "b", "enter")
        await wait_until(pilot, lambda: client.requests)
        assert client.requests[0].messages[0].content == "a\nb"
        assert screen.composer.text == ""


async def test_the_last_reply_shows_its_keys(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        await answered(pilot, screen, "first")
        await answered(pilot, screen, "second")
        assert screen.transcript.text.count("ctrl+g regenerate") == 1
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: "variant 2 of 2 (alt+p, alt+n)" in screen.transcript.text)
        await answered(pilot, screen, "third")
        app.post_message(events.Key("alt+p", "p"))  # as a terminal sends it
        await wait_until(pilot, lambda: "variant 1 of 2" in screen.transcript.text)
        assert screen.composer.text == ""
        assert screen.composer.has_focus


async def test_notices_stand_beside_the_cockpit_and_hide_no_figure(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE, notifications=True) as pilot:
        screen = await ready(pilot)
        await pilot.press("tab", "ctrl+c")
        rack = screen.get_child_by_type(ToastRack)
        toasts: list[Region] = []
        while not any(toasts):  # a notice that stands there is never idle, which `pause` waits for
            await pilot.pause(0.01)
            toasts = [toast.region for holder in rack.children for toast in holder.children]
        assert max(toast.right for toast in toasts) <= screen.query_one("#chat-column").region.right
        assert any("ctrl+q quits" in text for text in notices(screen))


async def test_a_prompt_that_is_too_long_stays_in_the_composer(tmp_path: Path) -> None:
    script = Script(refuses=("The context is full", "the prompt has 9,000 tokens, n_ctx is 8,192"))
    async with opened(tmp_path, script) as (_, _, pilot, screen):
        await ask(pilot, screen, "very long")
        await wait_until(pilot, lambda: screen.composer.text == "very long")
        assert "the prompt has 9,000 tokens" in screen.transcript.text


async def test_keys_switch_the_predictor_the_rule_and_the_length(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, client, pilot, _):
        await pilot.press("f5")
        assert client.speculation.predictor is PredictorName.OFF
        assert client.speculation.controller is ControllerName.AUTO
        await pilot.press("f5", "f10")
        assert client.speculation.predictor is PredictorName.LOOKUP
        assert client.speculation.controller is ControllerName.FIXED
        await pilot.press("f8", "f8", "f7")
        assert client.speculation.n_draft == 4
        await pilot.press("f10")
        assert client.speculation.controller is ControllerName.AUTO


async def test_new_text_does_not_move_a_scrolled_view(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, Script(replies=("line\n\n" * 20_000,), tps=500)) as (
        _,
        _,
        pilot,
        screen,
    ):
        await ask(pilot, screen, "go")
        transcript = screen.transcript
        await wait_until(pilot, lambda: transcript.max_scroll_y > 20)
        transcript.scroll_to(y=3, animate=False)
        await pilot.pause()
        n_lines = transcript.virtual_size.height
        await wait_until(pilot, lambda: transcript.virtual_size.height > n_lines + 5)
        assert transcript.scroll_offset.y == 3
        assert "more below" in transcript.frame_hint
        transcript.focus()
        await pilot.press("G")
        assert transcript.is_vertical_scroll_end
        assert transcript.frame_hint == ""


async def test_y_copies_the_reply_and_big_y_its_code_blocks_from_the_last(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(replies=("```\nfirst\n```\n```\nsecond\n```",))) as (
        app,
        _,
        pilot,
        screen,
    ):
        await answered(pilot, screen, "go")
        await pilot.press("shift+tab", "y")
        assert app.clipboard.startswith("```\nfirst")
        await pilot.press("Y")
        assert app.clipboard == "second\n"
        await pilot.press("Y")
        assert app.clipboard == "first\n"


async def test_a_reply_that_streams_is_copied_as_it_is_shown_and_not_edited(tmp_path: Path) -> None:
    text = "```\nfirst\n```\n" + "word " * 200
    async with opened(tmp_path, Script(replies=(text, " more" * 200), tps=20)) as (
        app,
        _,
        pilot,
        screen,
    ):
        await ask(pilot, screen, "go")
        await wait_until(pilot, lambda: "word" in screen.transcript.text)
        await pilot.press("shift+tab", "y")
        assert app.clipboard.startswith("```\nfirst\n```\nword")
        await pilot.press("Y")
        assert app.clipboard == "first\n"
        await pilot.press("E")
        assert screen.composer.text == ""
        assert not screen.outbox.is_edit
        assert notices(screen)[-1] == "A reply is running: esc stops it."
        why = "A reply is running: {reply-stop} stops it."
        assert screen.obstacles()["message-edit-reply"] == why
        await pilot.press("escape")
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        screen.composer.focus()
        await pilot.press("enter")
        await wait_until(pilot, lambda: "more more" in screen.transcript.text)
        await pilot.press("shift+tab", "y")
        assert app.clipboard.startswith("```\nfirst"), "the part before"
        assert "more more" in app.clipboard, "and the live one"


async def test_a_question_in_a_chat_in_use_returns(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (_, client, pilot, screen):
        await answered(pilot, screen, "go")
        chat = screen.conversation.history.chat
        assert chat is not None
        lock = screen.conversation.history.store.lock_chat(chat.id)
        assert lock is not None
        with lock:
            await ask(pilot, screen, "more")
            await pilot.pause()
            assert "another kvchat process" in notices(screen)[-1]
            assert screen.composer.text == "more"
            assert len(client.requests) == 1
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(client.requests) == 2)


async def test_i_shows_the_statistics_of_a_reply_and_hides_them(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        await answered(pilot, screen, "go")
        await pilot.press("shift+tab", "i")
        *_, reply, aside = app.conversation.entries()
        assert reply.speaker is Speaker.MODEL
        assert "drafts by lookup · length fixed" in aside.content
        assert "accepted by source: lookup" in aside.content
        await pilot.press("i")
        assert app.conversation.entries()[-1] == reply


async def test_enter_waits_for_the_letters_before_it(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    text = "typed in one burst, faster than the screen"
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        for character in text:
            app.post_message(events.Key(_name(character), character))
        app.post_message(events.Key("enter", "\r"))
        await wait_until(pilot, lambda: client.requests)
        assert client.requests[0].messages[0].content == text


def _name(character: str) -> str:
    return {" ": "space", ",": "comma"}.get(character, character)


async def test_an_unsent_text_of_another_kvchat_is_shown(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    store = app.conversation.history.store
    chat = add_chat(store, "shared")
    async with app.run_test(size=WIDE) as pilot:
        screen = await ready(pilot)
        for text in ("of the other", "newer"):
            with ChatStore(store.path) as other:
                other.save_unsent({chat.id: UnsentText(text)})
            screen.open_chat(chat.id)
            await wait_until(pilot, lambda text=text: screen.composer.text == text)
            await pilot.press("ctrl+n")
            await wait_until(pilot, lambda: screen.composer.text == "")


async def test_a_long_reply_is_changed_as_it_reads_and_takes_no_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    text = "see @folder and @notes.txt\n" * 40
    async with opened(tmp_path, Script(replies=(text, "done"))) as (_, client, pilot, screen):
        screen.outbox.folder = tmp_path
        await answered(pilot, screen, "why")
        await pilot.press("shift+tab", "E")
        assert screen.composer.written == text
        await pilot.pause()
        assert not any("@folder" in plain(line) for line in screen.beside.lines)
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(client.requests) == 2)
        assert client.requests[-1].continues_text == text


async def test_thinking_is_folded_and_t_opens_it(tmp_path: Path) -> None:
    async with opened(
        tmp_path, Script(replies=("<think>\nfirst this\n</think>\n\nThe answer.",))
    ) as (_, _, pilot, screen):
        await answered(pilot, screen, "why")
        assert "The answer." in screen.transcript.text
        assert "first this" not in screen.transcript.text
        await pilot.press("shift+tab", "t")
        assert "first this" in screen.transcript.text
        assert "</think>" not in screen.transcript.text


async def test_ctrl_t_colours_tokens_and_the_choice_is_saved(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, Script(("The *red* fox ran home.",)))
    saved = app.services.settings
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        await answered(pilot, chat, "go")
        assert "The red fox ran home." in chat.transcript.text
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: "colours  ▪ lookup" in chat.transcript.text)
        assert saved.settings.ui.tint == "source"
        assert "The *red* fox ran home." in chat.transcript.text
        await pilot.press("ctrl+t")
        assert "▪ accepted draft" in chat.transcript.text
        await pilot.press("ctrl+t")
        assert "The red fox ran home." in chat.transcript.text
        assert saved.settings.ui.tint == "off"


async def test_a_key_that_can_do_nothing_gives_the_reason(tmp_path: Path) -> None:
    async with opened(tmp_path, Script(("so " * 20,), tps=20.0)) as (_, _, pilot, screen):
        for act, reason in (
            (screen.action_copy_message, "no reply to copy"),
            (screen.action_copy_code, "no code block"),
            (screen.action_statistics, "no statistics"),
            (screen.action_fork, "no message yet at which to fork"),
            (partial(screen.action_variant, 1), "No message has variants yet: ctrl+g"),
            (screen.action_see_all, "already sees the whole chat"),
            (screen.action_export, "send a question first"),
            (screen.transcript.action_thinking, "contains thinking"),
        ):
            act()
            await wait_until(pilot, lambda reason=reason: reason in " ".join(notices(screen)))
        why = screen.obstacles()
        assert why["message-continue"] == "the last reply is complete"
        assert why["message-see-all"] == "the model already sees the whole chat"
        assert why["reply-stop"] == "no reply is running"
        assert {*NEEDS_REPLY, *NEEDS_QUESTION, "chat-export"} <= {*why}
        assert "engine-restart" not in why
        await ask(pilot, screen, "go")
        await wait_until(pilot, lambda: "so so" in screen.transcript.text)
        why = screen.obstacles()
        assert "message-edit-reply" in why
        assert not {"reply-stop", "chat-export", "message-continue"} & {*why}
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        assert {*screen.obstacles()} == {"message-continue", "message-see-all", "reply-stop"}
        await pilot.press("ctrl+g")
        await wait_until(pilot, lambda: "variant 2 of 2" in screen.transcript.text)
        await wait_until(pilot, lambda: not screen.conversation.is_replying)
        screen.action_variant(1)
        await wait_until(pilot, lambda: "There are no more variants." in notices(screen))


async def test_without_a_model_its_keys_give_the_reason(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, has_model=False)
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: app.screen is not app.chat)
        await pilot.press("escape", "f5")
        await wait_until(pilot, lambda: "No model is loaded." in notices(app.chat))
        assert {*NEEDS_MODEL} <= {*app.chat.obstacles()}


async def test_a_copy_of_a_chat_ends_at_the_selected_message(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, _, pilot, screen):
        await answered(pilot, screen, "first")
        await answered(pilot, screen, "second")
        original = screen.conversation.history.chat_id
        await pilot.press("shift+tab", "k", "k")
        screen.action_fork()
        await wait_until(pilot, lambda: "the original chat is unchanged" in str(notices(screen)))
        assert screen.conversation.history.chat_id != original
        await wait_until(pilot, lambda: "second" not in screen.transcript.text)
        assert screen.composer.has_focus
        screen.open_chat(original)
        await wait_until(pilot, lambda: "second" in screen.transcript.text)
        await pilot.click(Transcript, offset=(10, 1))
        path = screen.conversation.history.store.path_to(screen.conversation.history.head_id)
        assert screen.transcript.selected == path[0].id
