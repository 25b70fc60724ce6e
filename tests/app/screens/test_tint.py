"""Tokens of the chat in the colours of where they came from."""

from pathlib import Path

from tests.support.fakes_app import WIDE, answered, make_app, ready, wait_until
from tests.support.fakes_client import Script


async def test_ctrl_t_colours_tokens_and_the_choice_is_kept(tmp_path: Path) -> None:
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


async def test_a_kept_choice_colours_from_the_first_reply_on_and_while_it_comes(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.toml").write_text('[ui]\ntint = "verdict"\n')
    app, _ = make_app(tmp_path, Script(("The *red* fox ran home. " * 9,), tps=40.0))
    controller = app.controller
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put("go")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "▪ accepted draft" in chat.transcript.text)
        assert controller.is_replying
        controller.stop()
        await wait_until(pilot, lambda: not controller.is_replying)
