"""What is exported comes back, with any text; the same file twice is two chats."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.chat_files.jsonl import jsonl_of, read_jsonl
from app.chat_files.markdown import markdown_of, n_left_out
from app.store.chats import ChatStore
from app.store.records import Chat, ChatTree, StoredMessage
from engine.configuration import SamplingSettings

TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.text("\\<!-{}>\n\r#\u2028\x00\x1b[m ", max_size=40),
    st.sampled_from(["## You", "\n\n", "---", ""]),
)
TIMES = st.floats(0, 4e9)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
STATS = st.dictionaries(
    TEXT, st.one_of(st.integers(-(2**63), 2**63 - 1), TEXT, st.lists(st.floats(-1, 1))), max_size=3
)
SAMPLING = st.builds(
    SamplingSettings,
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 99),
    repetition_window=st.integers(0, 99),
)


@st.composite
def trees(draw: st.DrawFn) -> ChatTree:
    messages: list[StoredMessage] = []
    for message_id in range(7, 7 + draw(st.integers(0, 6))):
        parents = [None, *(message.id for message in messages)]
        messages.append(
            StoredMessage(
                id=message_id,
                chat_id=3,
                parent_id=draw(st.sampled_from(parents)),
                role=draw(st.sampled_from(["system", "user", "assistant"])),
                content=draw(TEXT),
                token_ids=draw(st.none() | IDS),
                vocabulary_id=draw(st.none() | TEXT),
                model_name=draw(st.none() | TEXT),
                seed=draw(st.none() | st.integers(0, 2**63 - 1)),
                finish_reason=draw(st.sampled_from([None, "end", "cancelled"])),
                stats=draw(st.none() | STATS),
                created_at=draw(TIMES),
                predictor=draw(st.none() | TEXT),
                controller=draw(st.none() | TEXT),
            )
        )
    places = st.sampled_from([None, *(message.id for message in messages)])
    chat = Chat(
        id=3,
        title=draw(TEXT),
        title_locked=draw(st.booleans()),
        created_at=draw(TIMES),
        updated_at=draw(TIMES),
        model_path=draw(st.none() | TEXT),
        system_prompt=draw(TEXT),
        sampling=draw(SAMPLING),
        head_id=draw(places),
        archived_at=draw(st.none() | TIMES),
        context_start=draw(places),
        summary=draw(st.none() | TEXT),
    )
    return ChatTree(chat, tuple(messages))


def numbered(tree: ChatTree) -> ChatTree:
    """Give the tree with messages counted from 1, as the files have them."""
    ids: dict[int | None, int | None] = {None: None}
    ids |= {message.id: n for n, message in enumerate(tree.messages, start=1)}
    messages = tuple(
        replace(m, id=ids[m.id] or 0, chat_id=0, parent_id=ids[m.parent_id]) for m in tree.messages
    )
    chat = tree.chat
    return ChatTree(
        replace(chat, id=0, head_id=ids[chat.head_id], context_start=ids[chat.context_start]),
        messages,
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(trees(), min_size=1, max_size=3))
def test_json_lines_lose_nothing(chats: list[ChatTree]) -> None:
    assert list(read_jsonl(jsonl_of(chats))) == [numbered(tree) for tree in chats]


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(trees())
def test_markdown_has_the_texts_of_the_shown_branch_or_of_all(tree: ChatTree) -> None:
    shown, whole = "".join(markdown_of([tree])), "".join(markdown_of([tree], all_branches=True))
    by_id = {message.id: message for message in tree.messages}
    key, n_shown = tree.chat.head_id, 0
    while key is not None:
        assert f"\n\n{by_id[key].content}\n\n" in shown
        key, n_shown = by_id[key].parent_id, n_shown + 1
    assert all(f"\n\n{message.content}\n\n" in whole for message in tree.messages)
    assert n_shown + n_left_out([tree]) == len(tree.messages)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(chats=st.lists(trees(), min_size=1, max_size=2))
def test_a_file_goes_through_the_database_unchanged_and_twice_is_two_chats(
    tmp_path_factory: pytest.TempPathFactory, chats: list[ChatTree]
) -> None:
    exported = list(jsonl_of(chats))
    with ChatStore(tmp_path_factory.mktemp("s") / "chats.db") as store:
        first = store.add_trees(list(read_jsonl(exported)))
        second = store.add_trees(list(read_jsonl(exported)))
        for added in (first, second):
            assert "".join(jsonl_of(store.tree(chat.id) for chat in added)) == "".join(exported)
        assert len(store.list_chats(archived=None)) == 2 * len(chats)


def test_markdown_is_readable(tmp_path_factory: pytest.TempPathFactory) -> None:
    message = StoredMessage(
        id=1, chat_id=1, parent_id=None, role="user", content="What is a *cache*?", token_ids=None,
        vocabulary_id=None, model_name=None, seed=None, finish_reason=None, stats=None,
        created_at=0.0,
    )  # fmt: skip
    answer = replace(
        message, id=2, parent_id=1, role="assistant", content="Memory.", model_name="SmolLM2"
    )
    other = replace(answer, id=3, content="A store.")
    chat = Chat(1, "Caches", False, 0.0, 0.0, None, "Be\nbrief.", SamplingSettings(), 2)
    text = "".join(markdown_of([ChatTree(chat, (message, answer, other))], all_branches=True))
    seen = [line for line in text.split("\n") if line]
    assert [line.split(", 1")[0].split(" 19")[0] for line in seen] == [
        "# Caches", "Begun", "> Be", "> brief.", "## You", "What is a *cache*?", "## SmolLM2",
        "Memory.", "---", "*Another branch after “What is a *cache*?”*", "## SmolLM2", "A store.",
    ]  # fmt: skip
