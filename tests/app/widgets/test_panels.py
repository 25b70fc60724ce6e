from textual.app import ComposeResult

from app.render.lines import plain
from app.widgets.bars import TabStrip
from app.widgets.panels import PANELS, Panel
from tests.app.widgets.host import Host


class Widgets(Host):
    def compose(self) -> ComposeResult:
        yield TabStrip(("one", "two"), "F9 next")
        for name in PANELS:
            yield Panel(name)


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


async def test_a_frame_is_painted_again_with_its_next_title() -> None:
    app = Widgets()
    async with app.run_test(size=(50, 60)) as pilot:
        panel = app.query(Panel).first()
        for title in ("before", "after"):
            panel.set_frame(title=title)
            await pilot.pause()
            assert title in panel.render_lines(panel.outer_size.region)[0].text
