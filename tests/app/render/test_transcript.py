from app.chat.entries import Entry, Speaker
from app.chat.spans import TokenSpan
from app.render.lines import plain
from app.render.transcript import MAX_QUESTION_LINES, MAX_REPLY_CHARS, EntryLines, question_lines
from engine.events import TokenKind


def shown(entry: EntryLines, width: int = 40) -> list[str]:
    return [plain(line).rstrip() for line in entry.lines(width)]


def test_a_question_is_literal_text() -> None:
    assert shown(EntryLines(Entry(1, Speaker.USER, "# [b]x\x1b"))) == ["# [b]x␛", ""]


def test_a_pasted_book_is_cut_with_a_note() -> None:
    lines = question_lines("word " * 20_000, 50)
    assert len(lines) == MAX_QUESTION_LINES + 1
    assert "more characters not shown" in plain(lines[-1])


FOX = (
    TokenSpan("The *red* ", TokenKind.PLAIN),
    TokenSpan("fox\n", TokenKind.DRAFT, "lookup"),
    TokenSpan("ran", TokenKind.CORRECTION, "lookup"),
)


def reply(spans: tuple[TokenSpan, ...]) -> Entry:
    return Entry(2, Speaker.MODEL, "".join(span.text for span in spans), spans=spans)


def test_a_tinted_reply_is_plain_text_in_colours_with_a_legend() -> None:
    entry = EntryLines(reply(FOX), "source")
    assert shown(entry) == ["The *red* fox", "ran", "colours  ▪ lookup", ""]
    styles = {run.text: run.style for line in entry.lines(40) for run in line}
    assert styles["fox"] == "source-lookup"
    entry.set_tint("off")
    assert shown(entry) == ["The red fox", "ran", ""]


def test_of_a_very_long_reply_the_end_is_laid_out_and_the_rest_is_counted() -> None:
    line = "0123456789\n"
    text = line * (3 * MAX_REPLY_CHARS // len(line)) + "the end"
    whole = EntryLines(Entry(2, Speaker.MODEL, text))
    lines = [plain(each) for each in whole.lines(80)]
    assert "characters above are not shown" in lines[0]
    assert any("the end" in each for each in lines)
    assert sum(map(len, lines)) < 2 * MAX_REPLY_CHARS
    growing = EntryLines(Entry(2, Speaker.MODEL, "", is_live=True))
    for start in range(0, len(text), 5000):
        growing.append(text[start : start + 5000])
    lines = [plain(each) for each in growing.lines(80)]
    assert "characters above are" in lines[0]
    assert any("the end" in each for each in lines)


def test_a_question_of_one_endless_word_is_cut_and_its_rest_counted() -> None:
    lines = question_lines("x" * 5_000_000, 80)
    assert len(lines) == MAX_QUESTION_LINES + 1
    assert "more characters" in plain(lines[-1])
