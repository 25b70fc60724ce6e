"""The settings screen: the facts of each setting, and when a change takes effect."""

from dataclasses import replace
from pathlib import Path

from textual.events import Paste
from textual.pilot import Pilot
from textual.widgets import Input, Static, TextArea

from app.application import KvchatApp
from app.render.lines import plain
from app.screens.dialogs import AskLine, AskYes, PickScreen
from app.screens.settings import NEW_PROMPT, EditScreen, SettingsScreen, ThemeScreen
from app.widgets.ink import LinesView
from app.widgets.select_list import SelectList
from tests.support.fakes_app import NARROW, WIDE, answered, make_app, ready, wait_until

COMMENTED = "# mine\n[chat]\ntemperature = 0.3 # calm\ntop_kk = 3\ntop_p = 7\n"


async def opened(pilot: Pilot[None], search: str = "") -> SettingsScreen:
    await ready(pilot)
    await pilot.press("f11")
    screen = pilot.app.screen
    assert isinstance(screen, SettingsScreen)
    await pilot.pause()
    await pilot.press(*search)
    await pilot.pause()
    return screen


def rows(app: KvchatApp) -> str:
    return "\n".join(plain(line) for line in app.screen.query_one(SelectList).lines)


def detail(app: KvchatApp) -> str:
    return " ".join(plain(line) for line in app.screen.query_one(LinesView).lines)


def problem(app: KvchatApp) -> str:
    return str(app.screen.query_one("#problem", Static).content)


async def test_each_value_is_shown_with_its_source_and_fault(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(COMMENTED)
    app, _ = make_app(tmp_path)
    for size in (WIDE, NARROW):
        async with app.run_test(size=size) as pilot:
            await opened(pilot)
            text = rows(app)
            [line] = [line for line in text.splitlines() if line.split()[:1] == ["temperature"]]
            assert line.split() == ["temperature", "0.3", "config.toml"]
            [line] = [line for line in text.splitlines() if "top_p " in line]
            assert line.split() == ["top_p", "0.95", "ignored"]
            [line] = [line for line in text.splitlines() if "top_k " in line]
            assert line.split() == ["top_k", "40"]
            await pilot.press(*"top_p")
            assert "less than or equal to 1" in detail(app)
            assert "default 0.95" in detail(app)
        app, _ = make_app(tmp_path)


async def test_a_number_is_corrected_in_place_and_written_without_loss_of_comments(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text(COMMENTED)
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, "temperature")
        await pilot.press("enter")
        assert isinstance(app.screen, EditScreen)
        line = app.screen.query_one(Input)
        assert line.value == "0.3"
        line.value = "11"
        await wait_until(pilot, lambda: "less than or equal to 10" in problem(app))
        await pilot.press("enter")
        assert isinstance(app.screen, EditScreen)
        line.value = "0.9"
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        assert "0.9" in rows(app)
    assert (tmp_path / "config.toml").read_text() == COMMENTED.replace("0.3", "0.9")
    assert app.conversation.history.sampling.temperature == 0.9


async def test_every_sampling_setting_counts_in_the_next_new_chat(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(pilot)
        before = app.services.settings.settings.chat.sampling()
        changes = {"thinking": "off", "thinking_budget": 50, "top_k": 3, "min_p": 0.2}
        for name, value in changes.items():
            screen.mark_row(("chat", name))
            await pilot.press("enter")
            if isinstance(app.screen, PickScreen):
                await pilot.press(*str(value), "enter")
            else:
                app.screen.query_one(Input).value = str(value)
                await pilot.press("enter")
            await wait_until(pilot, lambda: app.screen is screen)
        await pilot.press("escape", "escape", "ctrl+n")
        await pilot.pause()
        assert app.conversation.history.sampling == replace(before, **changes)


async def test_limits_of_replies_count_at_once_and_delete_takes_the_default_back(
    tmp_path: Path,
) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        for search, value in (("max_tokens", "7"), ("seed", "5"), ("stop", '["\\n\\n"]')):
            await opened(pilot, search)
            await pilot.press("enter")
            app.screen.query_one(Input).value = value
            await pilot.press("enter", "escape", "escape")
        await answered(pilot, chat, "hello")
        request = client.requests[-1]
        assert (request.max_tokens, request.seed, request.stop) == (7, 5, ("\n\n",))
        await opened(pilot, "max_tokens")
        await pilot.press("delete")
        assert app.conversation.limits.max_tokens is None
    assert "max_tokens" not in (tmp_path / "config.toml").read_text()


async def test_a_theme_is_seen_while_it_is_marked_and_taken_back_by_esc(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, "theme")
        before = app.theme
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemeScreen))
        await pilot.press("down")
        await wait_until(pilot, lambda: app.theme != before)
        await pilot.press("escape")
        assert app.theme == before
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, ThemeScreen))
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        assert app.theme == app.services.settings.settings.ui.theme != before


async def test_enter_chooses_the_marked_setting_though_a_paste_narrows_the_list_at_once(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        screen = await opened(pilot)
        screen.mark_row("ui.theme")
        screen.query_one(SelectList).action_pick()
        screen.post_message(Paste("no such setting"))
        await wait_until(pilot, lambda: isinstance(app.screen, ThemeScreen))


async def test_a_key_is_typed_and_counts_at_once(tmp_path: Path) -> None:
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, "speculation-predictor")
        await pilot.press("enter")
        assert isinstance(app.screen, EditScreen)
        app.screen.query_one(Input).value = "f8"
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        assert any("speculation-longer" in each.message for each in app._notifications)
        await pilot.press("escape", "escape")
        await ready(pilot)
        await pilot.press("f8")
        assert client.speculation.predictor == "off"
    assert app.services.settings.settings.keys == {"speculation-predictor": "f8"}


async def test_a_prompt_of_the_library_is_written_taken_into_a_chat_and_deleted(
    tmp_path: Path,
) -> None:
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        screen = await opened(pilot)
        screen.query_one(SelectList).mark(NEW_PROMPT)
        await pilot.press("enter")
        assert isinstance(app.screen, AskLine)
        await pilot.press(*"[b]", "enter")
        await wait_until(pilot, lambda: isinstance(app.screen, EditScreen))
        app.screen.query_one(TextArea).text = "Be brief.\nBe kind."
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
        await pilot.press("escape", "escape", "ctrl+s")
        await pilot.pause()
        await pilot.press("shift+tab", "enter", "down", "enter")
        await pilot.pause()
        assert app.screen.query_one("#system-prompt", TextArea).text == "Be brief.\nBe kind."
        await pilot.press("ctrl+s")
        assert chat.conversation.history.system_prompt == "Be brief.\nBe kind."
        await opened(pilot, "[b]")
        await pilot.press("delete")
        assert isinstance(app.screen, AskYes)
        await pilot.press("y")
        await wait_until(pilot, lambda: isinstance(app.screen, SettingsScreen))
    assert app.services.settings.settings.prompts == {}


async def test_a_file_that_cannot_be_written_is_reported_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text("[chat\n")
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await opened(pilot, "temperature")
        await pilot.press("enter")
        app.screen.query_one(Input).value = "0.9"
        await pilot.press("enter")
        await wait_until(pilot, lambda: app._notifications)
        [notice] = app._notifications
        assert "correct the file" in notice.message
    assert (tmp_path / "config.toml").read_text() == "[chat\n"


async def test_a_keymap_with_errors_is_one_notice_and_the_rest_of_it_works(tmp_path: Path) -> None:
    lines = '[keys]\nchat-nwe = "f8"\nreply-stop = "f99"\nspeculation-predictor = "f8"\n'
    (tmp_path / "config.toml").write_text(lines)
    app, client = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await wait_until(pilot, lambda: app._notifications)
        [notice] = app._notifications
        for part in (
            "did you mean chat-new",
            "'f99', which is not a key",
            "speculation-longer both use f8",
        ):
            assert part in notice.message
        await pilot.press("f8")
        assert client.speculation.predictor == "off"
