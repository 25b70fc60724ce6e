from textual.app import ComposeResult
from textual.geometry import Offset
from textual.pilot import Pilot

from app.chat.entries import Entry, Speaker
from app.render.transcript import GUTTER
from app.widgets.transcript import WINDOW, Transcript
from tests.app.widgets.host import Host

ENTRIES = [
    Entry(1, Speaker.USER, "first question"),
    Entry(2, Speaker.MODEL, "first **answer**"),
    Entry(3, Speaker.USER, "second question"),
    Entry(4, Speaker.MODEL, "", is_live=True),
]


class Widgets(Host):
    def compose(self) -> ComposeResult:
        yield Transcript(id="transcript")

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)


def painted(transcript: Transcript) -> str:
    """What stands on the screen, frame included."""
    strips = transcript.render_lines(transcript.outer_size.region)
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def drag(pilot: Pilot[None], start: Offset, end: Offset) -> None:
    await pilot.mouse_down(Transcript, offset=start)
    await pilot.hover(Transcript, offset=end)
    await pilot.mouse_up(Transcript, offset=end)
    await pilot.pause()


async def test_text_that_streams_is_painted_inside_the_frame() -> None:
    app = Widgets()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.show(ENTRIES)
        for span in ("Hel", "lo\n\n- o", "ne\n- two"):
            app.transcript.append(span)
            await pilot.pause()
        rows = painted(app.transcript).split("\n")
        assert all(len(row) == 60 for row in rows)
        assert rows[0].startswith("╭─")
        assert [row[1 + GUTTER : 30].strip() for row in rows if "two" in row] == ["• two"]
        assert "Hello" in painted(app.transcript)


async def test_another_theme_paints_with_its_own_colours() -> None:
    app = Widgets()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.show(ENTRIES)
        await pilot.pause()
        before = app.transcript.ink("you")
        app.theme = "dracula"
        await pilot.pause()
        assert app.transcript.ink("you") != before
        row = app.transcript.render_lines(app.transcript.outer_size.region)[1]
        assert app.transcript.ink("you").color in {s.style.color for s in row if s.style}


async def test_messages_can_be_selected_from_the_last_up() -> None:
    app = Widgets()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.show(ENTRIES)
        app.transcript.focus()
        await pilot.pause()
        assert app.transcript.selected == 4
        await pilot.press("k", "k")
        assert app.transcript.selected == 2
        assert any(row[1] == "▌" for row in painted(app.transcript).split("\n"))
        await pilot.press("j", "j", "j", "j")
        assert app.transcript.selected == 4


async def test_a_selected_message_is_scrolled_into_sight() -> None:
    app = Widgets()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.show([Entry(n, Speaker.MODEL, f"number {n}\n\n" * 9) for n in range(1, 5)])
        app.transcript.focus()
        await pilot.pause()
        assert "number 2" not in painted(app.transcript)
        await pilot.press("k", "k")
        await pilot.pause()
        assert "number 2" in painted(app.transcript)


async def test_text_can_be_selected_with_the_mouse_without_gutter_and_frame() -> None:
    app = Widgets()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.show(ENTRIES)
        await pilot.pause()
        await drag(pilot, Offset(1 + GUTTER, 1), Offset(1 + GUTTER + 5, 3))
        assert app.screen.get_selected_text() == "first question\n\nfirst"


async def test_a_narrower_window_wraps_again_and_keeps_the_end_in_sight() -> None:
    app = Widgets()
    async with app.run_test(size=(100, 20)) as pilot:
        app.transcript.show([Entry(1, Speaker.MODEL, "word " * 300 + "end")])
        await pilot.pause()
        n_lines = app.transcript.virtual_size.height
        await pilot.resize_terminal(60, 20)
        await pilot.pause()
        assert app.transcript.virtual_size.height > n_lines
        assert "end" in painted(app.transcript)


async def test_only_the_last_messages_are_laid_out() -> None:
    app = Widgets()
    async with app.run_test(size=(60, 20)) as pilot:
        entries = [Entry(i, Speaker.USER, f"number {i}") for i in range(1, 101)]
        app.transcript.show(entries)
        await pilot.pause()
        assert app.transcript.n_hidden == 100 - WINDOW
        app.transcript.scroll_home(animate=False)
        await pilot.pause()
        await pilot.click(Transcript, offset=(12, 1))
        assert app.transcript.n_hidden == 100 - 2 * WINDOW
