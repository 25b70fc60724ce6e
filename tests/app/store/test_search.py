"""Words are found in every script and in code, in every state of a message, and nothing else is."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.store.chats import ChatStore
from tests.app.store.conftest import ask, finish, new_chat, reply


def found(store: ChatStore, text: str) -> list[str]:
    ids = [hit.message_id for hit in store.search(text)]
    return [store.message(each).content for each in ids if each is not None]


def texts(store: ChatStore, *contents: str) -> None:
    chat = new_chat(store, "untitled")
    for content in contents:
        ask(store, chat, None, content)


@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("cache", "The KV Cache remembers"),
        ("CACHE kv", "The KV cache remembers"),
        ("n_ctx", "raise n_ctx_train"),
        ("Name", "getUserName()"),
        ("!=", "if a != b:"),
        ("->", "def f() -> int"),
        ("C", "in C"),
        ("模型", "什么是模型"),
        ("语言模型", "本地语言模型"),
        ("型", "什么是模型"),
        ("モデル", "言語モデルです"),
        ("ÄPFEL", "drei äpfel"),
        ("100%", "up to 100%"),
        ('"kv cache"', "a KV\n  cache"),
        ('read "kv cache', "read kv cache"),
        ('"模型"', "本地模型缓存"),
        ('"a b"', "so A\r\n\tB"),
        ('"模型\u3000缓存"', "模型 缓存"),
        ('"the end"', "this is the\xa0 end"),
        ("rememb", "it remembers"),
        ("o'brien", "Mr. O'Brien"),
        ('a"kv cache"', "a kv cache"),
    ],
)
def test_words_and_phrases_are_found(store: ChatStore, words: str, content: str) -> None:
    texts(store, content, "zzz")
    assert found(store, words) == [content]


@pytest.mark.parametrize(
    ("words", "content"),
    [
        ("cache tree", "the cache"),
        ('"cache kv"', "kv cache"),
        ('"art of"', "art is of"),
        ("cachex", "cache"),
        ('"a b"', "ab a.b a, b"),
        ("n.ctx", "n_ctx"),
        ("10_%", "100%"),
        ("zq", "z q"),
        ("", "anything"),
        ('  "" ', "anything"),
    ],
)
def test_what_does_not_hold_every_word_is_not_found(
    store: ChatStore, words: str, content: str
) -> None:
    texts(store, content)
    assert found(store, words) == []


@pytest.mark.parametrize(
    "words",
    ['"', '""', '"""', "AND", "a OR", "NOT x", "NEAR(", "content:x", "*", "-", "^a", "a*b", "(",
     ";", "'", "%", "_", "\0", "a\0b", "\\", "😀", "\ud7ff", "\U0010ffff", "{x y}:z", "+"],
)  # fmt: skip
def test_no_text_is_an_error(store: ChatStore, words: str) -> None:
    texts(store, f"before {words} after")
    assert all(words.strip('" \0').split("\0")[0] in text for text in found(store, words))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(st.text("abAB_ \n模型é😀\"'", max_size=12), min_size=1, max_size=6),
    st.text("abAB 模型é😀'_", min_size=1, max_size=6),
)
def test_every_message_with_all_of_the_words_is_found_the_newest_first(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str], words: str
) -> None:
    with ChatStore(tmp_path_factory.mktemp("s") / "chats.db") as store:
        texts(store, *contents)
        wanted = words.lower().split()
        expected = [c for c in contents if wanted and all(w in c.lower() for w in wanted)]
        assert found(store, words) == list(reversed(expected))


def test_the_newest_message_comes_first_and_titles_before_all(store: ChatStore) -> None:
    old, titled = new_chat(store, "old"), new_chat(store, "about caches")
    first = ask(store, old, None, "a cache")
    second = reply(store, old, first, "half a cache")
    third = ask(store, old, first, "the cache again")
    hits = store.search("cache")
    assert [(hit.chat_id, hit.message_id) for hit in hits] == [
        (titled.id, None), (old.id, third.id), (old.id, second.id), (old.id, first.id),
    ]  # fmt: skip
    for limit in range(1, 5):
        assert store.search("cache", limit) == hits[:limit]
    assert [hit.role for hit in hits] == [None, "user", "assistant", "user"]


def test_a_hit_shows_one_line_around_what_was_found_and_marks_it(store: ChatStore) -> None:
    chat = new_chat(store, "t")
    ask(store, chat, None, "x " * 200 + "the\n\tKV cache\r\nhere " + "y " * 200)
    (hit,) = store.search("cache kv")
    assert "\n" not in hit.snippet
    assert "\t" not in hit.snippet
    assert hit.snippet.startswith("…x x")
    assert hit.snippet.endswith("…")
    assert [hit.snippet[start:end] for start, end in hit.marked] == ["KV", "cache"]
    assert len(hit.snippet) <= 162


def test_a_hit_knows_whether_its_branch_is_shown_and_is_jumped_to(store: ChatStore) -> None:
    chat = new_chat(store, "t")
    question = ask(store, chat, None, "which cache")
    hidden = finish(store, reply(store, chat, question), "the hidden cache")
    below = ask(store, chat, hidden, "and then")
    shown = finish(store, reply(store, chat, question), "the shown cache")
    on_path = {hit.message_id: hit.is_on_shown_path for hit in store.search("cache")}
    assert on_path == {question.id: True, hidden.id: False, shown.id: True}
    store.show_message(hidden.id)
    assert store.chat(chat.id).head_id == below.id
    on_path = {hit.message_id: hit.is_on_shown_path for hit in store.search("cache")}
    assert on_path == {question.id: True, hidden.id: True, shown.id: False}
    store.show_message(question.id)
    assert store.chat(chat.id).head_id == below.id


def test_a_reply_is_found_while_it_is_written_and_as_it_ended(store: ChatStore) -> None:
    chat = new_chat(store, "t")
    answer = reply(store, chat, ask(store, chat, None, "q"), "early words")
    assert found(store, "early") == ["early words"]
    finish(store, answer, "the late words")
    assert found(store, "early") == []
    assert found(store, "late") == ["the late words"]
    store.reopen_message(answer.id)
    assert found(store, "late") == ["the late words"]
    finish(store, answer, "the latest word")
    assert found(store, "words") == []
    assert found(store, "latest") == ["the latest word"]
    store.delete_chat(chat.id)
    assert found(store, "latest") == []


def test_an_archived_chat_is_found_and_marked_as_archived(store: ChatStore) -> None:
    chat = new_chat(store, "caches")
    ask(store, chat, None, "the cache")
    store.update_chat(chat.id, archived_at=1.0)
    assert [hit.is_archived for hit in store.search("cache")] == [True, True]
