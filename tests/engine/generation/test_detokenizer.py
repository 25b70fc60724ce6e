from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from engine.generation.reply import StreamingText


def stream(data: list[bytes], stop: tuple[str, ...] = ()) -> tuple[list[str], StreamingText]:
    text = StreamingText(stop)
    shown = [text.push(part) for part in data]
    return [*shown, text.finish()], text


def test_half_a_character_is_never_shown() -> None:
    parts = [bytes([byte]) for byte in "aé世🙂".encode()]
    shown, _ = stream(parts)
    assert [part for part in shown if part] == ["a", "é", "世", "🙂"]


def test_bytes_that_are_no_character_become_a_replacement() -> None:
    shown, _ = stream([b"a", b"\xff", b"b"])
    assert "".join(shown) == "a\ufffdb"


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    shown, text = stream([b"ok", "é".encode()[:1]])
    assert "".join(shown) == "ok"
    assert text.text == "ok"


def test_a_stop_string_ends_the_text_across_token_borders() -> None:
    shown, text = stream([b"one", b" <", b"|st", b"op|>", b" two"], ("<|stop|>",))
    assert "".join(shown) == "one "
    assert text.stopped_by == "<|stop|>"


def test_what_may_become_a_stop_string_waits_and_is_shown_when_it_does_not() -> None:
    shown, text = stream([b"a<|s", b"x"], ("<|stop|>",))
    assert shown == ["a", "<|sx", ""]
    assert text.stopped_by is None


@given(st.text(max_size=60), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.data())
def test_any_cut_of_the_bytes_gives_the_same_text(
    text: str, stop: list[str], data: st.DataObject
) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    bounds = [0, *cuts, len(raw)]
    parts = [raw[a:b] for a, b in pairwise(bounds)]
    whole, _ = stream([raw], tuple(stop))
    cut, cut_text = stream(parts, tuple(stop))
    ends = [text.find(word) for word in stop if word in text]
    assert "".join(whole) == (text[: min(ends)] if ends else text)
    assert "".join(cut) == cut_text.text
    if not ends:
        assert "".join(cut) == text
    else:
        assert text.startswith("".join(cut))
        assert not any(word in "".join(cut) for word in stop)
