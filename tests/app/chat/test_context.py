from pathlib import Path
from typing import Any

from app.chat.context import IMAGE_TOKENS, n_tokens_of, summary_request, trim_of
from app.chat.entries import SUMMARY_BEGINS, index_of, prompt_messages
from app.store.records import StoredMessage
from engine.images import Image
from engine.requests import Role


def message(key: int, content: str, *, n_ids: int | None = None) -> StoredMessage:
    role: Role = "user" if key % 2 else "assistant"
    ids = None if n_ids is None else (7,) * n_ids
    return StoredMessage(
        key, 1, key - 1 or None, role, content, ids, None, None, None, "end", None, 0.0
    )


def turns(n: int, *, n_bytes: int = 300) -> list[StoredMessage]:
    return [message(key, "x" * n_bytes) for key in range(1, 2 * n + 1)]


def test_the_fewest_oldest_turns_go_until_a_third_is_free() -> None:
    path = turns(10)  # 20 messages of 108 tokens as they are counted
    found = trim_of(path, n_ctx=2160)
    assert found is not None
    assert found.context_start == 9, "12 messages of 108 tokens are within 1,440"
    assert [each.id for each in found.dropped] == list(range(1, 9))


def test_the_rest_begins_with_a_question_and_has_the_last() -> None:
    path = [*turns(3), message(7, "x" * 9000), message(8, "y" * 30)]
    found = trim_of(path, n_ctx=1000)
    assert found is not None
    assert found.context_start == 7


def test_a_chat_of_one_turn_has_nothing_to_drop() -> None:
    assert trim_of(turns(1), n_ctx=10) is None
    assert trim_of([], n_ctx=10) is None


def test_a_second_drop_starts_after_the_first() -> None:
    path = turns(10)
    found = trim_of(path, n_ctx=100_000, context_start=9)
    assert found is not None
    assert (found.context_start, [each.id for each in found.dropped]) == (11, [9, 10])
    assert trim_of(path, n_ctx=100, context_start=19) is None


def test_system_prompt_and_summary_count() -> None:
    path = turns(10)
    small = trim_of(path, n_ctx=2160)
    large = trim_of(path, n_ctx=2160, fixed_text="s" * 1500)
    assert small is not None
    assert large is not None
    assert large.context_start > small.context_start


def test_known_tokens_are_counted_and_others_are_estimated() -> None:
    assert n_tokens_of(message(2, "abc", n_ids=50)) == 58
    assert n_tokens_of(message(1, "你" * 100)) == 108, "three bytes per token"


def test_the_summary_follows_the_system_prompt() -> None:
    path = turns(3, n_bytes=1)
    messages = prompt_messages("Be brief.", path, context_start=5, summary="They met.")
    assert [m.role for m in messages] == ["system", "user", "assistant"]
    assert messages[0].content == f"Be brief.\n\n{SUMMARY_BEGINS}\nThey met."


def test_without_a_system_prompt_the_summary_goes_before_the_first_question() -> None:
    messages = prompt_messages("", turns(2, n_bytes=1), context_start=3, summary="They met.")
    assert [m.role for m in messages] == ["user", "assistant"]
    assert messages[0].content == f"{SUMMARY_BEGINS}\nThey met.\n\nx"


def test_on_a_branch_without_the_first_message_of_the_context_everything_is_seen() -> None:
    path = turns(2)
    assert index_of(99, path) == 0
    messages = prompt_messages("", path, context_start=99, summary="of another branch")
    assert len(messages) == 4
    assert SUMMARY_BEGINS not in messages[0].content


def test_an_image_counts_as_one_and_not_as_the_letters_of_its_name() -> None:
    image = Image("a.png", Path("/a/long/path" * 20 + "/a.png"), "0" * 64, 9, 9)
    alone = n_tokens_of(message(1, "abc"))
    assert n_tokens_of(message(1, f"abc{image.reference}")) == alone + IMAGE_TOKENS


def test_a_summary_leaves_out_the_oldest_turns_that_do_not_fit() -> None:
    path = turns(10)
    rules: dict[str, Any] = {
        "system_prompt": "",
        "context_start": None,
        "summary": None,
        "owner": "x",
    }
    whole, none = summary_request(path, n_ctx=4096, **rules)
    fewer, n_left_out = summary_request(path, n_ctx=1024, **rules)
    assert (len(whole.messages), none) == (21, 0)
    assert len(fewer.messages) == 21 - n_left_out
    assert n_left_out % 2 == 0, "whole turns"
    assert 0 < n_left_out < 20
