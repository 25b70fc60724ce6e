"""Which models are offered as drafts for another, and where was looked."""

from dataclasses import replace
from pathlib import Path

from app.application import KvchatApp
from app.screens.models import FilesScreen, folders_text
from app.screens.planner_lists import drafts_for
from engine.model.architecture import read_model
from engine.model.library import scan
from tests.support.fakes_app import NARROW, make_controller, ready, services, wait_until
from tests.support.fakes_client import CONFIGURATION


def test_models_of_another_vocabulary_come_last_with_the_reason(
    starter_path: Path, gemma_path: Path
) -> None:
    found = scan([starter_path.parent, gemma_path.parent])
    for target, other in ((starter_path, gemma_path), (gemma_path, starter_path)):
        listed = drafts_for(read_model(target), lambda: found)
        assert [entry.path for entry in listed] == [target, other]
        assert listed[0].problem is None
        assert "it cannot draft here: tokenizer.ggml" in (listed[1].problem or "")


def test_many_folders_are_counted_and_not_listed() -> None:
    folders = [Path(f"/models/{number}") for number in range(20)]
    assert folders_text(folders) == "in /models/0, /models/1 and 18 more (kvchat where)"
    assert folders_text(folders[:2]) == "in /models/0, /models/1"


async def test_a_draft_model_is_chosen_from_the_chat(
    tmp_path: Path, starter_path: Path, gemma_path: Path
) -> None:
    found = scan([starter_path.parent, gemma_path.parent])
    controller, client = make_controller(tmp_path)
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
        await pilot.press("enter")
        await wait_until(pilot, lambda: len(client.loads) == 2)
    draft = client.loads[-1].draft
    assert draft is not None
    assert draft.model_path == starter_path
