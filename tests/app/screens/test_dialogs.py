from dataclasses import replace
from pathlib import Path

from textual.widgets import Input, Select, Static, TextArea

from app.application import KvchatApp
from app.config import load_settings
from app.render.lines import plain
from app.screens.chat import ChatScreen
from app.screens.chat_settings import ChatSettingsScreen
from app.screens.chats import ChatsScreen
from app.screens.dialogs import AskLine, AskYes
from app.screens.downloads import FirstRunScreen
from app.screens.models import ModelsScreen
from app.widgets.select_list import SelectList
from engine.configuration import SpeculationSettings
from engine.errors import InstallError
from engine.model.library import ModelEntry
from tests.support.fakes_app import (
    NARROW,
    WIDE,
    answered,
    make_app,
    make_conversation,
    opened,
    ready,
    services,
    wait_until,
)  # fmt: skip
from tests.support.fakes_client import CONFIGURATION


async def test_chats_are_opened_renamed_and_deleted_from_their_list(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        await answered(pilot, screen, "first")
        await pilot.press("ctrl+n")
        await answered(pilot, screen, "second")
        await pilot.press("ctrl+l")
        assert isinstance(app.screen, ChatsScreen)
        await pilot.press("down", "r")
        assert isinstance(app.screen, AskLine)
        app.screen.query_one(Input).value = "renamed"
        await pilot.press("enter", "enter")
        await wait_until(pilot, lambda: screen.transcript.frame_title == "renamed")
        assert "first" in screen.transcript.text
        await pilot.press("ctrl+l", "d")
        assert isinstance(app.screen, AskYes)
        await pilot.press("y")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        assert app.screen.query_one(SelectList).rows
        await pilot.press("escape")
        assert [chat.title for chat in screen.conversation.history.store.list_chats()]


async def test_deleting_the_shown_chat_leaves_an_empty_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        await answered(pilot, screen, "only")
        await pilot.press("ctrl+l", "d", "y")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatsScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: screen.transcript.frame_title == "New chat")
        assert screen.conversation.entries() == []


async def test_settings_of_a_chat_are_checked_and_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, client, pilot, screen):
        await pilot.press("ctrl+s")
        dialog = app.screen
        assert isinstance(dialog, ChatSettingsScreen)
        dialog.query_one(TextArea).text = "Be brief."
        dialog.query_one("#temperature", Input).value = "11"
        dialog.query_one("#min_p", Input).value = "1"
        await pilot.press("ctrl+s")
        assert app.screen is dialog
        problem = str(dialog.query_one("#problem", Static).render())
        assert "temperature must be a number, 0.0 to 10.0, not '11'" in problem
        assert "min p must be a number, 0.0 to below 1.0, not '1'" in problem
        dialog.query_one("#min_p", Input).value = "0.05"
        dialog.query_one("#temperature", Input).value = "0.5"
        dialog.query_one("#top_k", Input).value = "0.1k"
        await pilot.press("ctrl+s")
        assert app.screen is dialog, "102.4 is no whole number"
        dialog.query_one("#top_k", Input).value = "1k"
        dialog.query_one("#answer-rule", Input).value = str(tmp_path / "gone.json")
        await pilot.press("ctrl+s")
        assert "gone.json cannot be read" in str(dialog.query_one("#problem", Static).render())
        schema = tmp_path / "answer.json"
        schema.write_text('{"type": "object"}')
        dialog.query_one("#answer-rule", Input).value = str(schema)
        await pilot.press("ctrl+s")
        await answered(pilot, screen, "go")
        request = client.requests[0]
        assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 1024)
        assert request.sampling.json_schema == str(schema)
        assert request.messages[0].content == "Be brief."


async def test_another_model_is_loaded_from_the_list(tmp_path: Path) -> None:
    good = ModelEntry(
        path=tmp_path / "b.gguf",
        name="b",
        architecture="llama",
        file_type="Q4_1",
        n_ctx_train=8192,
        nbytes=92 << 20,
    )
    bad = ModelEntry(path=tmp_path / "a.gguf", name="a", nbytes=12, problem="truncated at byte 12")
    conversation, client = make_conversation(tmp_path)
    app = KvchatApp(
        conversation, services(tmp_path, models=(bad, good)), configuration=CONFIGURATION
    )
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        await pilot.press("ctrl+o")
        assert isinstance(app.screen, ModelsScreen)
        models = app.screen.query_one(SelectList)
        await wait_until(pilot, lambda: len(models.rows) == 2)
        assert "truncated at byte 12" in plain(models.lines[0])
        await pilot.press("enter")
        assert any("truncated" in notice.message for notice in app._notifications)
        await pilot.press("down", "enter")
        await wait_until(pilot, lambda: len(client.loads) == 2)
        assert client.loads[1].model_path == good.path


async def test_the_first_run_shows_where_it_looked_and_installs_with_one_key(
    tmp_path: Path,
) -> None:
    app, client = make_app(tmp_path, has_model=False)
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        texts = " ".join(str(widget.render()) for widget in app.screen.query("Static"))
        assert str(tmp_path / "models") in texts
        await pilot.press("i")
        await wait_until(pilot, lambda: client.loads)
        assert client.loads[0].model_path == tmp_path / "starter.gguf"


async def test_the_first_run_opens_a_file_by_its_path_and_looks_again(tmp_path: Path) -> None:
    (file := tmp_path / "a.gguf").write_bytes(b"x")
    found: list[ModelEntry] = []
    conversation, client = make_conversation(tmp_path)
    app = KvchatApp(conversation, replace(services(tmp_path), scan=lambda: found))
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        progress = app.screen.query_one("#progress")
        await pilot.press("r")
        await wait_until(pilot, lambda: "No model was found" in str(progress.render()))
        for typed in ("nothing.gguf", str(file)):
            await pilot.press("o")
            app.screen.query_one(Input).value = typed
            await pilot.press("enter")
            assert ("nothing.gguf is not a file" in str(progress.render())) or client.loads
        await wait_until(pilot, lambda: client.loads)
        await pilot.press("ctrl+o", "ctrl+n")
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        found += [
            ModelEntry(path=tmp_path / "bad.gguf", name="bad", nbytes=1, problem="truncated"),
            ModelEntry(path=tmp_path / "b.gguf", name="b", nbytes=1),
        ]
        await pilot.press("r")
        await wait_until(pilot, lambda: len(client.loads) == 2)
    assert [each.model_path for each in client.loads] == [file, tmp_path / "b.gguf"]


async def test_a_chat_without_a_model_shows_what_can_be_done_and_leads_back(tmp_path: Path) -> None:
    app, client = make_app(tmp_path, has_model=False)
    async with app.run_test(size=NARROW) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: isinstance(app.screen, ChatScreen))
        chat = app.screen
        assert isinstance(chat, ChatScreen)
        await wait_until(pilot, lambda: "ctrl+o  opens or installs" in chat.transcript.text)
        await pilot.press(*"hm", "enter")
        assert any("ctrl+o opens or installs" in n.message for n in app._notifications)
        assert "enter sends, ctrl+j new line" in str(chat.composer.placeholder)
        assert chat.composer.text == "hm"
        await pilot.press("ctrl+o")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        await pilot.press("ctrl+n")
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("i")
        await wait_until(pilot, lambda: client.loads)
        await wait_until(pilot, lambda: "No model" not in chat.transcript.text)


async def test_who_drafts_and_by_which_rule_is_remembered(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, _, pilot, _):
        await pilot.press("f5", "f10", "f8")
    saved = load_settings(tmp_path / "config.toml").settings.speculation
    assert (saved.predictor, saved.controller, saved.n_draft) == ("off", "fixed", 4)


async def test_a_failed_install_is_reported_and_can_be_tried_again(tmp_path: Path) -> None:
    calls = []

    def fail(_: object) -> Path:
        calls.append(1)
        raise InstallError("no network: check the connection")

    conversation, client = make_conversation(tmp_path)
    app = KvchatApp(conversation, replace(services(tmp_path), install_starter=fail))
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("i")
        progress = app.screen.query_one("#progress")
        await wait_until(pilot, lambda: "check the connection" in str(progress.render()))
        await pilot.press("i")
        await wait_until(pilot, lambda: len(calls) == 2)
        assert client.loads == []


async def test_every_binding_has_an_id_a_description_and_a_tooltip(tmp_path: Path) -> None:
    from app.commands import own_bindings, own_nodes

    async with opened(tmp_path) as (app, _, _, screen):
        bindings = [b for node in (*own_nodes(screen), app) for b in own_bindings(node, {})]
    assert len(bindings) > 20
    assert all(b.id and b.description and b.tooltip for b in bindings)


async def test_verification_is_a_setting_that_takes_effect_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, client, pilot, screen):
        before = screen.conversation.speculation
        await pilot.press("ctrl+s", "ctrl+s")
        assert client.speculation == SpeculationSettings(), "nothing is sent where nothing changed"
        await pilot.press("ctrl+s")
        dialog = app.screen
        dialog.query_one("#verification", Select).value = "rejection"
        dialog.query_one("#bonus_token", Select).value = False
        await pilot.press("ctrl+s")
        changed = replace(before, verification="rejection", bonus_token=False)
        await wait_until(pilot, lambda: client.speculation == changed)
        assert screen.conversation.speculation == changed
        await pilot.press("ctrl+s")
        assert app.screen.query_one("#verification", Select).value == "rejection"
        assert not app.screen.query_one("#bonus_token", Select).value


async def test_settings_of_a_chat_are_shown_as_they_are_and_saved_unchanged(tmp_path: Path) -> None:
    async with opened(tmp_path) as (app, _, pilot, screen):
        odd = replace(
            screen.conversation.history.sampling,
            thinking_budget=1_500_000, temperature=0.12345678, min_p=0.00001, top_p=1.0,
        )  # fmt: skip
        screen.conversation.history.change_settings(system_prompt="", sampling=odd)
        await pilot.press("ctrl+s")
        assert app.screen.query_one("#top_p", Input).value == "1"
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: app.screen is screen)
        assert screen.conversation.history.sampling == odd


async def test_the_first_run_leads_to_the_models_that_can_be_downloaded(tmp_path: Path) -> None:
    app, _ = make_app(tmp_path, has_model=False)
    async with app.run_test(size=WIDE) as pilot:
        await wait_until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("d")
        await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
