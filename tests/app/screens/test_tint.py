"""Tokens of the chat in the colours of where they came from."""

from dataclasses import replace
from pathlib import Path

from app.application import KvchatApp
from tests.fakes_app import WIDE, answered, make_controller, ready, services, wait_until
from tests.fakes_client import CONFIGURATION, Script


async def test_ctrl_t_colours_tokens_and_the_choice_is_kept(tmp_path: Path) -> None:
    controller, _ = make_controller(tmp_path, Script(("The *red* fox ran home.",)))
    saved: list[str] = []
    wanted = replace(services(tmp_path), save_tint=saved.append)
    app = KvchatApp(controller, wanted, configuration=CONFIGURATION)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        await answered(pilot, chat, "go")
        assert "The red fox ran home." in chat.transcript.text
        await pilot.press("ctrl+t")
        await wait_until(pilot, lambda: "colours  ▪ lookup" in chat.transcript.text)
        assert "The *red* fox ran home." in chat.transcript.text
        await pilot.press("ctrl+t")
        assert "▪ accepted draft" in chat.transcript.text
        await pilot.press("ctrl+t")
        assert "The red fox ran home." in chat.transcript.text
        assert saved == ["source", "verdict", "off"]


async def test_a_kept_choice_colours_from_the_first_reply_on_and_while_it_comes(
    tmp_path: Path,
) -> None:
    controller, _ = make_controller(tmp_path, Script(("The *red* fox ran home. " * 9,), tps=40.0))
    wanted = replace(services(tmp_path), tint="verdict")
    app = KvchatApp(controller, wanted, configuration=CONFIGURATION)
    async with app.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        chat.composer.put("go")
        await pilot.press("enter")
        await wait_until(pilot, lambda: "▪ accepted draft" in chat.transcript.text)
        assert controller.is_replying
        controller.stop()
        await wait_until(pilot, lambda: not controller.is_replying)
