"""What is wrong with a file is reported with its line."""

import json
import re
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat_files import read_chats, write_chats
from app.chat_files.jsonl import ChatFileError, jsonl_of
from app.store.records import Chat, ChatTree, StoredMessage
from engine.configuration import SamplingSettings

MESSAGES = tuple(
    StoredMessage(
        id=n, chat_id=1, parent_id=n - 1 or None, role="user", content=f"text {n}", token_ids=(1,),
        vocabulary_id="v", model_name=None, seed=None, finish_reason=None, stats={"n": 1},
        created_at=1.0,
    )
    for n in (1, 2, 3)
)  # fmt: skip
TREE = ChatTree(Chat(1, "t", False, 1.0, 1.0, None, "", SamplingSettings(), 3), MESSAGES)
LINES = [json.loads(line) for line in jsonl_of([TREE])]


def as_bytes(*lines: object) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def read(data: bytes) -> list[ChatTree]:
    return list(read_chats(BytesIO(data)))


@pytest.mark.parametrize(
    ("line", "changes", "named"),
    [
        (1, {"format": "other"}, "line 1"),
        (1, {"version": 2}, "version is 2"),
        (1, {"title": None}, "line 1: title"),
        (1, {"title": "\ud800"}, "surrogate pair"),
        (1, {"title_locked": 1}, "line 1: title_locked"),
        (1, {"created_at": True}, "line 1: created_at"),
        (1, {"created_at": float("nan")}, "nan"),
        (1, {"updated_at": 1.79e12}, "line 1: updated_at"),
        (1, {"archived_at": -1e12}, "line 1: archived_at"),
        (2, {"created_at": 1e18}, "line 2: created_at"),
        (1, {"head": 9}, "line 1: head"),
        (1, {"context_start": 9}, "line 1: context_start"),
        (1, {"n_messages": 4}, "4 messages"),
        (1, {"n_messages": 2, "head": 2}, "line 4"),
        (1, {"n_messages": -1}, "-1 messages"),
        (1, {"sampling": {"temperature": "hot"}}, "line 1: sampling.temperature"),
        (1, {"sampling": {"top_k": 1.5}}, "line 1: sampling.top_k"),
        (1, {"sampling": {"unheard": 1}}, "line 1: sampling.unheard"),
        (1, {"sampling": 1}, "line 1: sampling"),
        (2, {"role": "robot"}, "line 2: role"),
        (2, {"content": 5}, "line 2: content"),
        (2, {"unheard": 5}, "line 2: unheard"),
        (3, {"id": 1}, "line 3: message 1"),
        (3, {"parent": 3}, "line 3"),
        (3, {"seed": 2**63}, "line 3: seed"),
        (3, {"token_ids": [2**31]}, "line 3: token_ids.0"),
        (3, {"token_ids": [True]}, "line 3: token_ids.0"),
        (3, {"stats": [1]}, "line 3: stats"),
    ],
)
def test_a_wrong_field_is_named(line: int, changes: dict[str, object], named: str) -> None:
    lines = [{**values, **changes} if n == line else values for n, values in enumerate(LINES, 1)]
    with pytest.raises(ChatFileError, match=re.escape(named)):
        read(as_bytes(*lines))


OPTIONAL = {
    "archived_at", "model_path", "summary", "head", "context_start", "parent", "model_name", "seed",
    "finish_reason", "predictor", "controller", "stats", "vocabulary_id", "token_ids", "folder",
    "is_pinned",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "name"),
    [(n, name) for n in (1, 2) for name in LINES[n - 1] if name not in OPTIONAL],
)
def test_every_field_that_is_no_option_must_be_there(line: int, name: str) -> None:
    lines = [dict(values) for values in LINES]
    del lines[line - 1][name]
    with pytest.raises(ChatFileError, match=f"line {line}"):
        read(as_bytes(*lines))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"", "no chat"),
        (b"\n \n", "no chat"),
        (b"# a note\n\nof mine\n", "line 1"),
        (b"{\n", "line 1"),
        (as_bytes(*LINES)[:-30], "line 4"),
        (b"{" * 100_000, "line 1"),
        (b'{"a":' * 100_000, "line 1"),
        (as_bytes(LINES[0], 5), "line 2"),
        (as_bytes(LINES[0]) + b"\xff\n", "line 2"),
    ],
)
def test_a_file_of_another_kind_or_that_is_cut_is_named(data: bytes, place: str) -> None:
    with pytest.raises(ChatFileError, match=place):
        read(data)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({f"field {n}": n for n in range(2_000)}, "1,000 fields"),
        ({"stats": {str(n): n for n in range(2_000)}}, "1,000 fields"),
        ({"token_ids": [True] * 100_000}, "token_ids.0"),
    ],
)
def test_of_any_number_of_wrong_fields_few_are_named(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ChatFileError, match=f"line 2.*{named}") as caught:
        read(as_bytes(LINES[0], {**LINES[1], **changes}, *LINES[2:]))
    assert len(str(caught.value)) < 200


@given(st.integers(0, 2**32), st.integers(0, 255))
def test_any_changed_byte_is_read_or_named(place: int, byte: int) -> None:
    data = bytearray(as_bytes(*LINES))
    data[place % len(data)] = byte
    try:
        read(bytes(data))
    except ChatFileError as error:
        assert str(error)  # noqa: PT017  either outcome is right


def test_a_file_with_a_mark_of_its_byte_order_is_read() -> None:
    assert len(read(b"\xef\xbb\xbf" + as_bytes(*LINES))) == 1
    assert len(read(as_bytes(*LINES).replace(b"\n", b"\r\n"))) == 1


def test_a_file_that_cannot_be_written_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ChatFileError, match="cannot be written"):
        write_chats(tmp_path / "file" / "x.md", ["text"], replace=False)
    with pytest.raises(ChatFileError, match=r"/nonexist does not exist"):
        write_chats(tmp_path / "nonexist" / "x.md", ["text"], replace=False)

    def pieces():
        yield "half"
        raise ChatFileError("the database failed")

    with pytest.raises(ChatFileError, match="the database failed"):
        write_chats(tmp_path / "x.md", pieces(), replace=False)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_chats_are_read_one_by_one() -> None:
    n_read = 0

    def note(n_bytes: int) -> None:
        nonlocal n_read
        n_read = n_bytes

    one = as_bytes(*LINES)
    chats = read_chats(BytesIO(b"\n \n" + 1000 * one), on_progress=note)
    assert next(chats) == read(one)[0]
    assert n_read < 2 * len(one)
    assert sum(1 for _ in chats) == 999
