from textual.app import ComposeResult

from app.chat.snapshot import CockpitSnapshot
from app.render.lines import plain
from app.widgets.bars import TabStrip
from app.widgets.panels import PANELS, Panel
from tests.app.widgets.host import Host


class Widgets(Host):
    def compose(self) -> ComposeResult:
        yield TabStrip(("one", "two"), "F9 next")
        for name in PANELS:
            yield Panel(name)


async def test_every_panel_has_room_for_all_of_its_lines() -> None:
    app = Widgets()
    async with app.run_test(size=(50, 60)) as pilot:
        await pilot.pause()
        for panel in app.query(Panel):
            panel.present(CockpitSnapshot())
            assert len(panel.lines) <= panel.size.height
            assert panel.frame_title


async def test_the_predictor_stands_in_the_title() -> None:
    app = Widgets()
    async with app.run_test(size=(50, 60)) as pilot:
        await pilot.pause()
        panel = app.query_one("#speculation", Panel)
        panel.present(CockpitSnapshot(predictor="lookup", controller="auto"))
        top = panel.render_lines(panel.outer_size.region)[0]
        assert "speculation · lookup · auto" in "".join(segment.text for segment in top)


async def test_a_click_chooses_a_tab_and_it_differs_in_shape() -> None:
    app = Widgets()
    async with app.run_test(size=(50, 60)) as pilot:
        strip = app.query_one(TabStrip)
        strip.styles.display = "block"
        await pilot.pause()
        assert "[one]" in plain(strip.lines[0])
        await pilot.click(TabStrip, offset=(10, 0))
        assert strip.active == 1
        assert "[two]" in plain(strip.lines[0])
