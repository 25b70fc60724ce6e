from dataclasses import replace

import pytest

from app.chat.entries import ending_of, thinking_of, thinking_text
from app.chat.history import MAX_TITLE_CHARS, title_of
from app.chat.spans import TokenSpan, cut_spans, spans_of
from app.store.records import StoredMessage
from engine.events import CommittedToken, FinishReason, Thinking, TokenKind, TokensCommitted


def reply(reason: str | None, stats: dict[str, object] | None = None) -> StoredMessage:
    return StoredMessage(1, 1, None, "assistant", "x", None, None, None, None, reason, stats, 0.0)


def test_a_note_has_the_end_and_the_speed_of_a_reply() -> None:
    stats: dict[str, object] = {
        "n_emitted": 1412, "decode_tps": 74.2, "n_verified": 100, "n_accepted": 71,
        "first_token_s": 0.31, "speedup": 1.42, "saved_s": 8.0, "saved_error_s": 0.5,
    }  # fmt: skip
    note = ending_of(reply("cancelled", stats))
    assert note == "stopped · 1,412 tokens · 74 tok/s · accept 71% · 1.4x · first token 0.31 s"


def test_the_tokens_of_a_reply_are_those_of_its_text() -> None:
    with_end = replace(reply("end", {"n_emitted": 4}), token_ids=(7, 8, 9))
    assert ending_of(with_end) == "3 tokens"
    assert ending_of(replace(with_end, token_ids=None)) == "4 tokens"
    assert ending_of(replace(with_end, stats=None)) == ""


def test_tokens_without_ids_are_those_of_the_server() -> None:
    assert ending_of(replace(reply("end", {"n_emitted": 40}), token_ids=())) == "40 tokens"
    empty = replace(reply("end", {"n_emitted": 1}), content="", token_ids=())
    assert ending_of(empty) == "0 tokens"


@pytest.mark.parametrize(
    ("more", "figures"),
    [
        ({"plain_spread": 0.35}, "~74 tok/s · accept 1/1"),
        ({"speedup": 0.68, "saved_s": -4.0, "saved_error_s": 4.5}, "74 tok/s · accept 1/1"),
        ({"speedup": 0.68, "saved_s": -4.0}, "74 tok/s · accept 1/1"),
        ({"speedup": 1.2, "saved_s": 4.0, "saved_error_s": 1.5}, "74 tok/s · accept 1/1 · ~1.2x"),
    ],
    ids=["noisy", "within the noise", "of an older kvchat", "rough"],
)
def test_a_noisy_figure_is_marked_or_left_out(more: dict[str, object], figures: str) -> None:
    stats: dict[str, object] = {"decode_tps": 74.2, "n_verified": 1, "n_accepted": 1, **more}
    assert ending_of(reply("end", stats)) == figures


@pytest.mark.parametrize(
    ("reason", "ending"),
    [
        (None, "cut off: kvchat ended during the reply"),
        ("length", "cut off at the token limit"),
        ("context", "cut off: the context is full"),
        (FinishReason.STOP_STRING, ""),
        (FinishReason.STOP_TOKEN, ""),
        ("the engine crashed", "cut off: the engine crashed"),
    ],
)
def test_a_reply_that_was_cut_gives_the_reason(reason: str | None, ending: str) -> None:
    assert ending_of(replace(reply(reason), stats=None)) == ending


def test_thinking_has_its_time_its_tokens_and_why_it_was_closed() -> None:
    assert thinking_of({"n_thinking": 412, "thinking_s": 12.0}) == "thought for 12.0 s, 412 tokens"
    assert thinking_of({"n_thinking": 0, "thinking_s": 12.0}) == thinking_of({}) == ""
    running = Thinking(1, 2.0, is_over=False, note="the budget is used up")
    assert thinking_text(running) == (
        "thinking: 2.0 s, 1 token; ended because the budget is used up"
    )


def test_a_title_is_the_first_line_with_content() -> None:
    assert title_of("\n  \n Hello there \nmore") == "Hello there"
    assert len(title_of("x" * 500)) == MAX_TITLE_CHARS
    assert title_of("\n") == "New chat"


DRAFTED = CommittedToken(1, TokenKind.DRAFT, "lookup")
BONUS = CommittedToken(2, TokenKind.BONUS, "lookup")


def test_every_token_of_a_round_has_its_own_text() -> None:
    event = TokensCommitted((DRAFTED, BONUS), "two words", (4, 5))
    assert list(spans_of(event)) == [
        TokenSpan("two ", TokenKind.DRAFT, "lookup"),
        TokenSpan("words", TokenKind.BONUS, "lookup"),
    ]


def test_an_end_token_and_a_held_back_token_have_no_text() -> None:
    assert list(spans_of(TokensCommitted((DRAFTED, BONUS), "two ", (0, 4)))) == [
        TokenSpan("two ", TokenKind.BONUS, "lookup")
    ]
    assert list(spans_of(TokensCommitted((DRAFTED, BONUS), "two ", (4,)))) == [
        TokenSpan("two ", TokenKind.DRAFT, "lookup")
    ]


def test_text_that_no_token_claims_is_never_lost() -> None:
    assert list(spans_of(TokensCommitted((), "rest"))) == [TokenSpan("rest")]
    spans = spans_of(TokensCommitted((DRAFTED, BONUS), "two words"))
    assert "".join(span.text for span in spans) == "two words"


def test_pieces_follow_a_text_that_a_stop_string_shortened() -> None:
    spans = [TokenSpan("one ", TokenKind.PLAIN), TokenSpan("two", TokenKind.DRAFT, "suffix")]
    assert cut_spans(spans, "one t") == (TokenSpan("one ", TokenKind.PLAIN),
                                    TokenSpan("t", TokenKind.DRAFT, "suffix"))  # fmt: skip
    assert cut_spans(spans, "another text") is None
    assert cut_spans(spans, "one two three") is None
