from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.sanitize import harmless, visible, without_controls


def test_escape_sequences_become_visible_signs() -> None:
    assert visible("\x1b[31mred\x07") == "␛[31mred␇"


def test_bidirectional_and_invisible_controls_cannot_reorder_or_hide_text() -> None:
    assert visible("a\u202eb\u2066c\u200bd\ufeff") == "a\ufffdb\ufffdc\ufffdd\ufffd"


def test_lines_and_tabs_stay_readable() -> None:
    assert visible("a\r\nb\tc") == "a\nb   c"


def test_the_clipboard_gets_no_controls() -> None:
    assert without_controls("a\x1b]52;c;evil\x07b\tc\n") == "a]52;c;evilb\tc\n"


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    assert not any((ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 for c in visible(text))


def test_a_joiner_stays_in_an_emoji_and_shows_between_letters() -> None:
    assert visible("👩\u200d💻") == "👩\u200d💻"
    assert visible("a\u200db") == "a\ufffdb"


@given(st.text())
def test_what_is_made_harmless_is_as_wide_as_before(text: str) -> None:
    assert cell_len(harmless(text)) == cell_len(text)
    assert harmless(text) == harmless(harmless(text))
