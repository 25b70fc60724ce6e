"""The list of cards, by name and by size."""

from pathlib import Path

from app.render.lines import plain
from app.screens.planner_lists import CardsScreen
from app.widgets.select_list import SelectList
from tests.support.fakes_app import WIDE, make_app, ready


async def test_a_size_finds_the_cards_of_that_size_and_any_card_of_it(
    tmp_path: Path,
) -> None:
    taken: list[str | None] = []
    app, _ = make_app(tmp_path)
    async with app.run_test(size=WIDE) as pilot:
        await ready(pilot)
        for typed in ("8 gb", "8GiB", "8g"):
            screen = CardsScreen([])
            await app.push_screen(screen, taken.append)
            await pilot.press(*(key if key != " " else "space" for key in typed))
            first, *others = map(plain, screen.query_one(SelectList).lines)
            assert "any 8 GiB card" in first
            assert others
            assert all("8.00 GiB" in line or "8 GiB" in line for line in others if line.strip())
            await pilot.press("enter")
    assert taken == ["8GiB"] * 3
