"""Widgets that paint lines: their colours are those of the theme, also of the next one."""

import pytest
from rich.color import Color

from app.render.lines import Run
from app.widgets.ink import InkLines
from tests.app.widgets.host import Host


class Painted(Host):
    def compose(self):
        yield InkLines(id="lines")


async def test_a_style_is_worked_out_when_it_is_painted_and_anew_for_another_theme() -> None:
    app = Painted()
    async with app.run_test() as pilot:
        lines = app.query_one(InkLines)
        lines.show([(Run("here", "good"), Run(" there"))])
        await pilot.pause()
        before = lines.ink("good")
        assert set(lines._component_styles) == {"ink--good"}
        app.theme = "textual-light"
        await pilot.pause()
        assert isinstance(before.color, Color)
        assert lines.ink("good").color != before.color
        assert lines.ink("good") == lines.content_strip(0, 20)._segments[0].style


async def test_a_style_that_the_sheet_does_not_have_is_told() -> None:
    app = Painted()
    async with app.run_test():
        with pytest.raises(KeyError, match="ink--golden"):
            app.query_one(InkLines).ink("golden")
