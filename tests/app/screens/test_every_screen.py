"""What every screen keeps: the keys that leave it, and that a text is painted letter by letter."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import ModalScreen, Screen
from textual.theme import Theme
from textual.widgets import Input

import app.screens
from app.application import KvchatApp
from app.chat.context_full import ContextFullOptions
from app.chat.conversation import Conversation
from app.commands import every_action, key_sections
from app.sanitize import harmless
from app.screens.cache import CacheScreen
from app.screens.chat_settings import ChatSettings, ChatSettingsScreen
from app.screens.chats import ChatsScreen
from app.screens.compare import CompareScreen, arm_list
from app.screens.dialogs import AskLine, AskYes, ContextFullScreen, HelpScreen, Saving
from app.screens.downloads import DownloadScreen, FirstRunScreen, HubScreen
from app.screens.export import ExportScreen
from app.screens.models import FilesScreen, ModelsScreen
from app.screens.planner import PlannerScreen
from app.screens.planner_lists import CardsScreen, change_list, goal_list
from app.screens.presets import PresetsScreen
from app.screens.settings import EditScreen, SettingsScreen, ThemeScreen
from app.setting_definitions import SettingDefinition
from app.store.chats import ChatStore
from app.widgets.ink import Ink
from engine.cache.report import CacheEntry, CacheNote, CacheReport
from engine.configuration import Configuration, SamplingSettings, SpeculationSettings
from engine.events import Failed, TiersChanged
from engine.experiment.arm import PLAIN
from engine.memory.hardware import Device
from engine.model.hub import HubModel, HubPart
from engine.model.library import ModelEntry
from engine.planning.changes import Change
from engine.planning.models import fit_context
from engine.planning.planner import Planner, Setup
from engine.planning.verdict import FitVerdict
from tests.app.screens.plan_host import SilentDryRun
from tests.support.fakes_app import WIDE, answered, ask, make_app, ready, services, wait_until
from tests.support.fakes_client import CONFIGURATION, Script, ScriptedClient

AnyScreen = Screen[Any]

TEXTS = {
    "markup": "What does [/INST] mean, [@click=app.quit]and[/] [bold",
    "controls": "a\x1b]0;x\x07b\x9b1m\u202ec\u2066d\u200b\ufeff\ne\r\nf\tg\vh",
    "long": "x" * 10_000,
    "nothing": "",
}


class Sources:
    """What screens are made of: the application, a real model file, and a text from anywhere."""

    def __init__(self, application: KvchatApp, model: Path, folder: Path, text: str) -> None:
        self.app = application
        self.conversation = application.conversation
        self.configuration = Configuration(model, 2048)
        self.folder = folder
        self.text = text
        self.file = Path("/") / (text or "x")

    def entries(self) -> tuple[ModelEntry, ...]:
        return (
            ModelEntry(
                path=self.file,
                name=self.text,
                architecture=self.text,
                file_type=self.text,
                n_ctx_train=8192,
                nbytes=1,
            ),
            ModelEntry(path=self.file, name=self.text, nbytes=1, problem=self.text),
        )

    def install(self, report: Callable[[str], None]) -> Path:
        report(self.text)
        return self.file

    def configured(self) -> Configuration:
        return replace(self.configuration, model_path=self.file)


def compare(sources: Sources) -> AnyScreen:
    return CompareScreen(sources.conversation, sources.text, folder=sources.folder)


def export(sources: Sources) -> AnyScreen:
    plan = Planner().plan(Setup(sources.configuration, "llama-server"))
    return ExportScreen(plan, sources.text)


def settings(sources: Sources) -> AnyScreen:
    return ChatSettingsScreen(ChatSettings(sources.text, SamplingSettings(), SpeculationSettings()))


def planner(sources: Sources) -> AnyScreen:
    return PlannerScreen(
        sources.file, sources.configured(), dry_run=SilentDryRun(), presets_dir=sources.folder
    )


def effects(sources: Sources) -> AnyScreen:
    made = Setup(sources.configuration)
    return change_list((Change(sources.text, made, 1, 1, FitVerdict.FITS),))


def plan_models(sources: Sources) -> AnyScreen:
    context = partial(fit_context, None, Planner())
    return ModelsScreen(sources.entries, (sources.file,), context, sources.file)


def download_screen(sources: Sources) -> AnyScreen:
    model = HubModel(sources.text, sources.text, (HubPart(f"{sources.text}.gguf", 10**15, None),))
    return DownloadScreen(model, sources.folder, sources.text)


def all_settings(sources: Sources) -> AnyScreen:
    written = sources.app.services.settings
    written.change("prompts", "x", sources.text)
    return SettingsScreen(written, every_action, [*sources.app.available_themes], lambda *_: None)


def edited(sources: Sources) -> AnyScreen:
    return EditScreen(SettingDefinition("chat", "stop", sources.text, ()), sources.text)


SCREENS: dict[str, Callable[[Sources], AnyScreen]] = {
    "AskLine": lambda s: AskLine(s.text, s.text),
    "AskYes": lambda s: AskYes(s.text),
    "CacheScreen": lambda s: CacheScreen(s.conversation),
    "CardsScreen": lambda s: CardsScreen([Device(s.text, "gpu", 1, 1)]),
    "ChatSettingsScreen": settings,
    "ChatsScreen": lambda s: ChatsScreen(s.conversation),
    "CompareScreen": compare,
    "ContextFullScreen": lambda s: ContextFullScreen(
        s.text, ContextFullOptions(64, can_branch=True, can_take_back=True)
    ),
    "EditScreen": edited,
    "EffectsScreen": effects,
    "ExportScreen": export,
    "FilesScreen": lambda s: FilesScreen(s.text, s.entries, (s.file,), (s.file,)),
    "FirstRunScreen": lambda s: FirstRunScreen((s.file,), s.install, lambda: None, title=s.text),
    "GoalScreen": lambda _: goal_list(),
    "HelpScreen": lambda s: HelpScreen(key_sections(s.app, s.app.screen, {})),
    "HubScreen": lambda s: HubScreen(f"hf:{s.text}"),
    "DownloadScreen": download_screen,
    "ModelsScreen": plan_models,
    "PlannerScreen": planner,
    "PresetsScreen": lambda s: PresetsScreen(s.folder, s.configured()),
    "SettingsScreen": all_settings,
    "ArmsScreen": lambda s: arm_list([PLAIN], PLAIN),
    "ThemeScreen": lambda s: ThemeScreen([*s.app.available_themes], s.app),
}


def leaves(kind: type[AnyScreen]) -> Iterator[type[AnyScreen]]:
    below = [each for each in kind.__subclasses__() if each.__module__.startswith("app.")]
    for each in below:
        yield from leaves(each)
    if not below and kind.__module__.startswith("app."):
        yield kind


def test_no_screen_is_forgotten_here() -> None:
    for module in pkgutil.iter_modules(app.screens.__path__):
        importlib.import_module(f"app.screens.{module.name}")
    names = {leaf.__name__ for base in (Screen, ModalScreen) for leaf in leaves(base)}
    lists = {"EffectsScreen", "GoalScreen", "ArmsScreen"}
    assert names - {"ChatScreen", "Saving"} == set(SCREENS) - lists


@pytest.mark.slow
async def test_ctrl_q_leaves_from_every_screen_and_dialog(
    tmp_path: Path, starter_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, _ = make_app(tmp_path)
    left: list[Screen[Any]] = []
    monkeypatch.setattr(KvchatApp, "action_quit", lambda app: left.append(app.screen))
    async with application.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        sources = Sources(application, starter_path, tmp_path, "x")
        for name in ("ChatScreen", "CommandPalette", *SCREENS):
            await show(pilot, name, sources)
            await pilot.press("ctrl+q")
            await wait_until(pilot, lambda: left)
            assert left.pop() is application.screen, name
            if application.screen is not chat:
                application.pop_screen()


class SlowClient(ScriptedClient):
    """Takes its time to end."""

    may_end = False

    @property
    def has_ended(self) -> bool:
        return self.is_closed and self.may_end


async def test_leaving_shows_that_it_saves_until_all_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = SlowClient(Script(replies=("word " * 50,), tps=10))
    store = ChatStore(tmp_path / "chats.db")
    controller = Conversation(client, store, sampling=SamplingSettings())
    application = KvchatApp(controller, services(tmp_path), configuration=CONFIGURATION)
    left: list[bool] = []
    monkeypatch.setattr(KvchatApp, "exit", lambda _, **__: left.append(True))
    async with application.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        await ask(pilot, chat, "go")
        await wait_until(pilot, lambda: "word" in chat.transcript.text)
        await pilot.press("ctrl+q", "ctrl+q")
        await wait_until(pilot, lambda: isinstance(application.screen, Saving))
        assert client.is_closed
        assert not controller.is_replying
        assert not left
        client.may_end = True
        await wait_until(pilot, lambda: left)
    store.close()
    with ChatStore(tmp_path / "chats.db") as again:
        assert len(again.list_chats()) == 1


@pytest.mark.slow
async def test_esc_closes_every_screen_but_the_chat(tmp_path: Path, starter_path: Path) -> None:
    application, _ = make_app(tmp_path)
    async with application.run_test(size=WIDE) as pilot:
        chat = await ready(pilot)
        sources = Sources(application, starter_path, tmp_path, "x")
        for name in ("CommandPalette", *SCREENS):
            await show(pilot, name, sources)
            assert application.screen is not chat
            await pilot.press("escape")
            await wait_until(pilot, lambda: application.screen is chat)


async def show(pilot: Pilot[None], name: str, sources: Sources) -> None:
    if name in SCREENS:
        sources.app.push_screen(SCREENS[name](sources))
    elif name == "CommandPalette":
        sources.app.action_command_palette()
    await pilot.pause()


async def leave(pilot: Pilot[None], name: str) -> None:
    if name == "CommandPalette":  # popped amid a search it fails: only its key stops that
        await pilot.press("escape")
    else:
        pilot.app.pop_screen()
    await pilot.pause()


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_text_from_anywhere_is_painted_letter_by_letter(
    text: str, tmp_path: Path, starter_path: Path
) -> None:
    (tmp_path / f"{text.replace('/', '')[:60] or 'x'}.toml").write_text(
        'name = "x"\nn_ctx = "' + text.replace("\\", "")[:99].encode("unicode_escape").decode()
    )
    application, client = make_app(tmp_path, Script(replies=("word " * 400,), tps=40))
    application.register_theme(Theme(text, primary="#336699"))
    async with application.run_test(size=WIDE, notifications=True) as pilot:
        chat = await ready(pilot)
        await ask(pilot, chat, text or "x")
        controller = chat.conversation
        await wait_until(pilot, lambda: controller.is_replying)
        [reply] = controller.running.values()
        chat_id = reply.chat_id
        assert chat_id is not None
        controller.history.store.update_chat(chat_id, title=text, system_prompt=text)
        controller.history.refresh()
        await paints_letters(pilot)
        await pilot.press("ctrl+n")
        await ask(pilot, chat, "waits")
        client.emit(Failed(text, text))
        client.emit(TiersChanged(report(text, chat_id)))
        application.notify(text, title=text)
        await paints_letters(pilot)
        await pilot.press("escape", "ctrl+g")
        await paints_letters(pilot)
        sources = Sources(application, starter_path, tmp_path, text)
        for name in ("CommandPalette", *SCREENS):
            await show(pilot, name, sources)
            for line in application.screen.query(Input):
                line.value = text
            await paints_letters(pilot)
            await leave(pilot, name)


BLOCKS = set("█▓▒▚▞▤▥▧░▁▂▃▄▅▆▇")


@pytest.mark.slow
async def test_gauges_are_letters_on_every_screen_if_the_settings_ask_for_it(
    tmp_path: Path, starter_path: Path
) -> None:
    application, _ = make_app(tmp_path)
    application.symbols = "ascii"
    async with application.run_test(size=(200, 50)) as pilot:
        chat = await ready(pilot)
        await answered(pilot, chat, "Hello")
        sources = Sources(application, starter_path, tmp_path, "x")
        sources.file = starter_path
        for name in ("ChatScreen", *SCREENS):
            await show(pilot, name, sources)
            if name == "PlannerScreen":
                await wait_until(pilot, lambda: "W weights" in gauges(application.screen))
            assert not BLOCKS & set(gauges(application.screen)), name
            if application.screen is not chat:
                application.pop_screen()
            await pilot.pause()


def gauges(screen: AnyScreen) -> str:
    """What the widgets with gauges paint."""
    return "".join(
        strip.text
        for widget in screen.walk_children()
        if isinstance(widget, Ink)
        for strip in widget.render_lines(widget.outer_size.region)
    )


def report(text: str, chat_id: int) -> CacheReport:
    owners = (f"chat:{chat_id}",)
    entry = CacheEntry("0" * 16, 0, 64, 1, ("warm",), owners, False, 1, 0.0, 1.0)
    return CacheReport(entries=(entry,), notes=(CacheNote(0.0, text),))


async def paints_letters(pilot: Pilot[None]) -> None:
    """Fail where a character is on the screen that moves the cursor or turns the direction."""
    await pilot.pause()
    screen = pilot.app.screen
    text = "\n".join(strip.text for strip in screen._compositor.render_strips())
    assert text == "\n".join(map(harmless, text.split("\n"))), f"on {screen}"
