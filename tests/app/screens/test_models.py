"""The list of models: while folders are looked through, with verdicts, and of the hub."""

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from textual.events import Paste
from textual.screen import Screen
from textual.widgets import Static

from app.application import KvchatApp
from app.render.lines import plain
from app.screens.dialogs import AskYes
from app.screens.downloads import DownloadScreen, HubScreen
from app.screens.models import FilesScreen, ModelsScreen
from app.screens.planner_lists import drafts_for
from app.widgets.select_list import SelectList
from engine.configuration import Adapter, DraftConfiguration
from engine.memory.bandwidth import Bandwidth, Bandwidths
from engine.memory.hardware import Device
from engine.memory.units import GIB
from engine.model.architecture import read_model
from engine.model.hub import DownloadError, HubModel, HubPart
from engine.model.library import ModelEntry, scan
from engine.planning.models import fit_context
from engine.planning.planner import Planner
from tests.support.drafting_models import drafting_model
from tests.support.fakes_app import NARROW, make_app, make_conversation, ready, services, wait_until
from tests.support.fakes_client import CONFIGURATION
from tests.support.hub_server import serving_hub


def entries_of(tmp_path: Path, n_models: int) -> list[ModelEntry]:
    return [
        ModelEntry(
            path=tmp_path / f"{number}.gguf",
            name=f"model {number}",
            architecture="llama",
            file_type="Q4_1",
            n_ctx_train=8192,
            nbytes=1,
            identity=str(number),
        )
        for number in range(n_models)
    ]


def text_of(screen: Screen[Any]) -> str:
    return "\n".join(str(each.render()) for each in screen.query(Static))


def rows_of(screen: Screen[Any]) -> str:
    return "\n".join(map(plain, screen.query_one(SelectList).lines))


async def test_a_server_that_was_used_is_a_row_and_opens(tmp_path: Path) -> None:
    address = "http://cellar:8080#tiny"
    screen = ModelsScreen(
        list, [tmp_path], lambda: None, None, purpose="load", servers=lambda: [address]
    )
    app, _ = make_app(tmp_path)
    chosen: list[str | None] = []
    async with app.run_test(size=(80, 24)) as pilot:
        await ready(pilot)
        app.push_screen(screen, chosen.append)
        await wait_until(pilot, lambda: screen.is_mounted and "cellar:8080" in rows_of(screen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: chosen)
    assert chosen == [address]


async def test_enter_before_the_models_are_found_takes_the_one_that_was_typed(
    tmp_path: Path,
) -> None:
    entries, may_end = entries_of(tmp_path, 40), threading.Event()

    def scan() -> list[ModelEntry]:
        may_end.wait(10)
        return entries

    screen = ModelsScreen(scan, [tmp_path], lambda: None, None, purpose="load")
    app, _ = make_app(tmp_path)
    chosen: list[object] = []
    async with app.run_test() as pilot:
        await ready(pilot)
        app.push_screen(screen, chosen.append)
        await wait_until(pilot, lambda: screen.is_mounted and screen.query(SelectList))
        await pilot.press(*"39", "enter")
        assert not chosen
        may_end.set()
        await wait_until(pilot, lambda: chosen)
    assert chosen == [str(entries[39].path)]


async def test_without_models_here_a_row_leads_to_ways_to_get_one(tmp_path: Path) -> None:
    added: list[bool] = []
    screen = ModelsScreen(
        list, [tmp_path], lambda: None, None, purpose="load", add=lambda: added.append(True)
    )
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        app.push_screen(screen)
        await wait_until(pilot, lambda: screen.is_mounted and "Install the" in rows_of(screen))
        await pilot.press("tab")
        await wait_until(pilot, lambda: "quantisation" in text_of(screen))
        await pilot.press("tab")
        await wait_until(pilot, lambda: "Install the" in rows_of(screen))
        await pilot.press("enter")
        await wait_until(pilot, lambda: added)


@pytest.mark.slow
async def test_what_fits_comes_first_in_the_catalogue(tmp_path: Path) -> None:
    here = (Device("CPU", "cpu", 8 * GIB, 8 * GIB),)
    planner = Planner(here=here, bandwidths=lambda _: Bandwidth(2e10, "measured here"))
    context = partial(fit_context, None, planner)
    screen = ModelsScreen(list, [], context, None, purpose="load", tab=1)
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(120, 36)) as pilot:
        await ready(pilot)
        app.push_screen(screen)
        await wait_until(pilot, lambda: screen.is_mounted and screen.query(SelectList))
        await wait_until(pilot, lambda: "fits" in rows_of(screen))
        await pilot.press("right")
        await wait_until(pilot, lambda: "quantisation Q5_K_M" in text_of(screen))
        await pilot.press("left")
        await wait_until(pilot, lambda: "quantisation Q4_K_M" in text_of(screen))
        await wait_until(pilot, lambda: "fits" in rows_of(screen))
        lines = rows_of(screen).splitlines()
        signs = ["✓" in line for line in lines]
        assert signs.index(False) == sum(signs) > 10, "those that fit, then the others"
        assert "≤" in lines[0]
        assert "tok/s" in lines[0]
        assert float(lines[0].split("≤")[1].split()[0]) >= 5
        await pilot.press(*"llama-3.3")
        await wait_until(pilot, lambda: "llama-3.3-70b" in text_of(screen))
        await pilot.press(*["backspace"] * 9, *"phmini")
        await wait_until(pilot, lambda: "phi-4-mini" in rows_of(screen))
        assert "llama" not in rows_of(screen)


async def test_no_file_that_is_loaded_is_deleted(tmp_path: Path) -> None:
    entries = entries_of(tmp_path, 5)
    target, draft, projector, adapter, free = [each.path for each in entries]
    for each in entries:
        each.path.write_bytes(b"12345")
    loaded = replace(
        CONFIGURATION,
        model_path=tmp_path / "somewhere" / ".." / target.name,
        draft=DraftConfiguration(draft, 512),
        mmproj_path=projector,
        adapters=(Adapter(adapter),),
    )
    (tmp_path / "somewhere").mkdir()
    planned = free
    screen = ModelsScreen(lambda: entries, [], lambda: None, planned, loaded=loaded)
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        app.push_screen(screen)
        await wait_until(pilot, lambda: screen.is_mounted and len(screen.query(SelectList)))
        await wait_until(pilot, lambda: "model 4" in rows_of(screen))
        for used in (target, draft, projector, adapter):
            screen.mark_row(str(used))
            await pilot.press("delete")
            await pilot.pause()
            assert app.screen is screen, used
        screen.mark_row(str(free))
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(app.screen, AskYes))


async def test_a_model_is_marked_found_and_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.paths.favourites_dir", lambda: tmp_path / "favourites")
    first, second = entries_of(tmp_path, 2)
    entries = [first, replace(second, copies=(tmp_path / "twice" / "1.gguf",))]
    for entry in entries:
        entry.path.write_bytes(b"12345")

    def scan() -> list[ModelEntry]:
        return [entry for entry in entries if entry.path.exists()]

    screen = ModelsScreen(scan, [tmp_path], lambda: None, entries[0].path, purpose="load")
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        app.push_screen(screen)
        await wait_until(pilot, lambda: screen.is_mounted and screen.query(SelectList))
        await wait_until(pilot, lambda: "model 1" in rows_of(screen))
        await pilot.press("down", "ctrl+l")
        await wait_until(pilot, lambda: f"also in {tmp_path / 'twice'}" in text_of(screen))
        assert any(str(tmp_path) in each.message for each in app._notifications)
        await pilot.press("ctrl+s")
        await wait_until(pilot, lambda: "★" in rows_of(screen).splitlines()[0])
        assert "model 1" in rows_of(screen).splitlines()[0]
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(app.screen, AskYes))
        assert "Delete 1, 1 file of 5 B" in text_of(app.screen)
        await pilot.press("n")
        assert entries[1].path.exists()
        await pilot.press("delete")
        await wait_until(pilot, lambda: isinstance(app.screen, AskYes))
        await pilot.press("y")
        await wait_until(pilot, lambda: "model 1" not in rows_of(screen))
        assert not entries[1].path.exists()
        await pilot.press("delete")
        await pilot.pause()
        assert entries[0].path.exists(), "the loaded one stays"


async def test_a_model_of_the_hub_is_rated_asked_for_downloaded_and_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.paths.models_dir", lambda: tmp_path / "models")
    monkeypatch.setattr("app.paths.remote_headers_dir", lambda: tmp_path / "headers")
    monkeypatch.setattr("app.planning.user_bandwidths", lambda: Bandwidths(None))
    monkeypatch.setattr("engine.memory.bandwidth._is_busy", lambda: False)
    data = drafting_model(tmp_path / "made.gguf", 1).read_bytes()
    with serving_hub() as hub:
        hub.files["maker/Tiny-GGUF"] = {"Tiny.Q4_K_M.gguf": data, "Tiny.F16.gguf": data * 2}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        app, client = make_app(tmp_path)
        async with app.run_test(size=(100, 30)) as pilot:
            await ready(pilot)
            await pilot.press("ctrl+o")
            await wait_until(pilot, lambda: isinstance(app.screen, ModelsScreen))
            models = app.screen
            app.screen.post_message(Paste("hf:maker/Tiny-GGUF"))
            await wait_until(pilot, lambda: "Hugging Face hub" in rows_of(models))
            await pilot.press("enter")
            await wait_until(pilot, lambda: isinstance(app.screen, HubScreen))
            files = app.screen
            await wait_until(pilot, lambda: "Tiny.F16" in rows_of(files))
            assert "✓ fits" in rows_of(files)
            await pilot.press("enter")
            await wait_until(pilot, lambda: isinstance(app.screen, AskYes))
            assert "The model fits with" in text_of(app.screen)
            assert "tok/s (limited by" in text_of(app.screen)
            await pilot.press("y")
            await wait_until(pilot, lambda: len(client.loads) == 2)
        path = tmp_path / "models" / "maker" / "Tiny-GGUF" / "Tiny.Q4_K_M.gguf"
        assert client.loads[1].model_path == path
        assert path.read_bytes() == data


async def test_a_download_shows_how_far_it_is_and_ends_where_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def download(model: HubModel, folder: Path, progress: Callable[[int, int], None]) -> Path:
        progress(25, 100)
        goes_on.wait(30)
        progress(50, 100)
        return model.place(folder)

    monkeypatch.setattr("app.screens.downloads.download", download)
    model = HubModel("maker/Tiny", "main", (HubPart("Tiny.gguf", 100, None),))
    screen, results = DownloadScreen(model, tmp_path, "fits"), []
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        app.push_screen(screen, results.append)
        await wait_until(pilot, lambda: screen.is_mounted and "25%" in text_of(screen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: "stopping" in text_of(screen))
        assert not results, "what is under way ends first"
        goes_on.set()
        await wait_until(pilot, lambda: results == [None])


async def test_a_download_that_fails_shows_why_until_esc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: object) -> Path:
        raise DownloadError("no space is left: free some space")

    monkeypatch.setattr("app.screens.downloads.download", download)
    model = HubModel("maker/Tiny", "main", (HubPart("Tiny.gguf", 100, None),))
    screen, results = DownloadScreen(model, tmp_path, "fits"), []
    app, _ = make_app(tmp_path)
    async with app.run_test(size=(100, 30)) as pilot:
        await ready(pilot)
        app.push_screen(screen, results.append)
        await wait_until(pilot, lambda: screen.is_mounted and "no space is left" in text_of(screen))
        assert "Tiny from maker/Tiny" in text_of(screen)
        assert "The model fits." in text_of(screen)
        assert not results
        await pilot.press("escape")
        await wait_until(pilot, lambda: results == [None])


async def test_repositories_of_a_catalogue_model_lead_to_the_wanted_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.paths.remote_headers_dir", lambda: tmp_path / "headers")
    data = drafting_model(tmp_path / "made.gguf", 1).read_bytes()
    with serving_hub() as hub:
        of_files = {"a-Q4_K_M.gguf": data, "a-F16.gguf": data * 2}
        for owner, n in (("nobody", 9), ("meta-llama", 7), ("somebody", 1234)):
            hub.files[f"{owner}/Llama-3.2-1B-GGUF"] = of_files
            hub.downloads[f"{owner}/Llama-3.2-1B-GGUF"] = n
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        screen, results = HubScreen("llama-3.2-1b:F16", purpose="plan"), []
        app, _ = make_app(tmp_path)
        async with app.run_test(size=(100, 30)) as pilot:
            await ready(pilot)
            app.push_screen(screen, results.append)
            await wait_until(pilot, lambda: screen.is_mounted and "downloads" in rows_of(screen))
            shown = [line.strip("▸ ").split()[:2] for line in rows_of(screen).splitlines()]
            assert [(name.split("/")[0], n) for name, n in shown] == [
                ("meta-llama", "7"), ("somebody", "1,234"), ("nobody", "9")
            ]  # fmt: skip
            await pilot.press("down", "enter")
            await wait_until(pilot, lambda: "a-F16" in rows_of(screen))
            assert "files of somebody/" in text_of(screen)
            await pilot.press("enter")
            await wait_until(pilot, lambda: results)
    assert results == ["hf:somebody/Llama-3.2-1B-GGUF/a-F16.gguf"]


async def test_a_refusal_of_the_hub_is_shown_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        screen = HubScreen("hf:nobody/nothing")
        app, _ = make_app(tmp_path)
        async with app.run_test(size=(100, 30)) as pilot:
            await ready(pilot)
            app.push_screen(screen)
            await wait_until(pilot, lambda: screen.is_mounted and screen.query(SelectList))
            await wait_until(pilot, lambda: "it does not exist" in text_of(screen))


def test_models_of_another_vocabulary_come_last_with_the_reason(
    starter_path: Path, gemma_path: Path
) -> None:
    found = scan([starter_path.parent, gemma_path.parent])
    for target, other in ((starter_path, gemma_path), (gemma_path, starter_path)):
        listed = drafts_for(read_model(target), lambda: found)
        assert [entry.path for entry in listed] == [target, other]
        assert listed[0].problem is None
        assert "draft model: tokenizer.ggml" in (listed[1].problem or "")


async def test_a_draft_model_is_chosen_from_the_chat(
    tmp_path: Path, starter_path: Path, gemma_path: Path
) -> None:
    found = scan([starter_path.parent, gemma_path.parent])
    controller, client = make_conversation(tmp_path)
    given = replace(services(tmp_path), scan=lambda: found)
    app = KvchatApp(
        controller, given, configuration=replace(CONFIGURATION, model_path=starter_path)
    )
    async with app.run_test(size=NARROW) as pilot:
        screen = await ready(pilot)
        screen.composer.put("/draft")
        await wait_until(pilot, lambda: screen.choices.display)
        await pilot.press("enter")
        await wait_until(pilot, lambda: isinstance(app.screen, FilesScreen) and app.screen.marked)
        await pilot.press("down", "enter")
        assert isinstance(app.screen, FilesScreen), "another vocabulary cannot draft"
        assert any("tokenizer.ggml" in each.message for each in app._notifications)
        await pilot.press("up", "enter")
        await wait_until(pilot, lambda: len(client.loads) == 2)
    draft = client.loads[-1].draft
    assert draft is not None
    assert draft.model_path == starter_path
