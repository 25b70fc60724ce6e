from app.chat.entries import divider
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.lines import plain
from app.render.status import MAX_TITLE, short_title, status_line
from app.render.transcript import EntryLines


def test_a_summary_stands_below_the_rule_and_does_nothing_to_the_terminal() -> None:
    lines = [plain(line) for line in EntryLines(divider("They \x1b[2J spoke of rivers.")).lines(60)]
    assert "as this summary" in lines[0]
    assert "spoke of rivers." in lines[1]
    assert "\x1b" not in lines[1]


def test_the_status_line_names_the_chat_that_is_answered_in_the_background() -> None:
    snapshot = CockpitSnapshot(
        phase=Phase.DECODING, model_name="Tiny", predictor="off", background_title="All\nabout " * 9
    )
    shown = plain(status_line(snapshot, 80))
    assert shown.startswith(" Tiny · answering “All about")
    assert "…”" in shown
    assert len(short_title("x" * 99)) == MAX_TITLE
