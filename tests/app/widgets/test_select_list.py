"""The list of every screen: what is marked, and how keys, clicks and the wheel move it."""

from functools import partial

from textual.app import ComposeResult

from app.render.lines import Run, clipped, plain
from app.widgets.select_list import Row, SelectList
from tests.app.widgets.host import Host


def row(name: str, *, below: str = "", is_enabled: bool = True) -> Row[str]:
    second = partial(clipped, (Run(below),)) if below else None
    return Row(name, partial(clipped, (Run(name),)), second, is_enabled=is_enabled)


class Lists(Host):
    def __init__(self, *, click_picks: bool = False) -> None:
        super().__init__()
        self.list = SelectList(note="a note", click_picks=click_picks)
        self.picked: list[str] = []

    def compose(self) -> ComposeResult:
        yield self.list

    def on_select_list_picked(self, message: SelectList.Picked) -> None:
        self.picked.append(message.key)


def shown(rows: SelectList) -> list[str]:
    """What the widget paints, without what the frame adds."""
    height, width = rows.size.height, rows.size.width
    return [rows.content_strip(y, width).text.rstrip() for y in range(height)]


async def test_the_mark_goes_past_rows_that_cannot_be_taken_and_from_end_to_start() -> None:
    app = Lists()
    async with app.run_test(size=(30, 10)) as pilot:
        app.list.show_rows([row("a", is_enabled=False), row("b"), row("c", is_enabled=False)])
        assert app.list.marked_key == "b"
        await pilot.press("down")
        assert app.list.marked_key == "b"
        app.list.show_rows([row("a"), row("b"), row("c")])
        await pilot.press("up", "up")
        assert app.list.marked_key == "c"
        await pilot.press("down", "enter")
        assert app.list.marked_key == "a"
        await pilot.pause()
        assert app.picked == ["a"]


async def test_the_mark_stays_with_its_row_when_other_rows_come_and_else_where_it_was() -> None:
    app = Lists()
    async with app.run_test(size=(30, 10)):
        app.list.show_rows([row("a"), row("b"), row("c")], "b")
        assert app.list.index == 1
        app.list.show_rows([row("new"), row("a"), row("b"), row("c")])
        assert app.list.index == 2
        app.list.show_rows([row("new"), row("a"), row("c")])
        assert app.list.marked_key == "c"
        app.list.show_rows([row("new")])
        assert app.list.index == 0
        app.list.show_rows([])
        assert app.list.marked_key is None


async def test_a_click_marks_and_the_next_one_takes_the_row() -> None:
    app = Lists()
    async with app.run_test(size=(30, 10)) as pilot:
        app.list.show_rows([row("a"), row("b"), row("c")])
        await pilot.pause()
        await pilot.click(SelectList, offset=(5, 2))
        assert (app.list.index, app.picked) == (1, [])
        await pilot.click(SelectList, offset=(5, 2))
        assert app.picked == ["b"]
        await pilot.click(SelectList, offset=(5, 7))
        assert app.picked == ["b"], "there is no row"


async def test_a_click_takes_a_row_at_once_if_the_list_is_set_so() -> None:
    app = Lists(click_picks=True)
    async with app.run_test(size=(30, 10)) as pilot:
        app.list.show_rows([row("a", below="more"), row("b", below="more")])
        await pilot.pause()
        await pilot.click(SelectList, offset=(5, 4))
        assert app.picked == ["b"], "the second line of the second row"


async def test_rows_of_two_lines_are_one_row_and_scroll_into_sight_whole() -> None:
    app = Lists()
    async with app.run_test(size=(30, 6)) as pilot:
        app.list.show_rows([row(str(i), below=f"below {i}") for i in range(9)], head=lambda _: ())
        await pilot.press("end")
        await pilot.pause()
        assert shown(app.list) == ["", "  below 7", "▸ 8", "  below 8"]
        assert [plain(line) for line in app.list.lines[:2]] == ["  0", "  below 0"]
        await pilot.press("pageup")
        assert app.list.marked_key == "7"
        await pilot.press("home")
        await pilot.pause()
        assert shown(app.list)[1] == "▸ 0"
