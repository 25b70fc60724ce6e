from app.chat.entries import reply_note
from app.chat.history import MAX_TITLE_CHARS, title_of
from app.store.records import StoredMessage


def reply(reason: str | None, stats: dict[str, object] | None = None) -> StoredMessage:
    return StoredMessage(1, 1, None, "assistant", "x", None, None, None, None, reason, stats, 0.0)


def test_a_note_says_how_a_reply_ended_and_how_fast_it_was() -> None:
    stats: dict[str, object] = {
        "n_emitted": 1412, "decode_tps": 74.2, "n_verified": 100, "n_accepted": 71,
        "first_token_s": 0.31, "speedup": 1.42,
    }  # fmt: skip
    note = reply_note(reply("cancelled", stats))
    assert note == "stopped · 1,412 tokens · 74 tok/s · accept 71% · 1.4x · first token 0.31 s"


def test_a_reply_that_ended_by_itself_needs_no_word() -> None:
    assert reply_note(reply("end")) == ""


def test_a_reply_without_an_end_was_cut() -> None:
    assert "kvchat was ended" in reply_note(reply(None))


def test_a_title_is_the_first_line_that_says_something() -> None:
    assert title_of("\n  \n Hello there \nmore") == "Hello there"
    assert len(title_of("x" * 500)) == MAX_TITLE_CHARS
    assert title_of("\n") == "New chat"
