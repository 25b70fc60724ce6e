"""Rows of the list of chats fit, whatever titles and folders are called."""

from dataclasses import replace
from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from app.render.chat_list import ChatRow, chat_row, hit_row
from app.render.lines import width_of
from app.store.records import Chat, ChatSize
from app.store.search import SearchHit
from engine.configuration import SamplingSettings

CHAT = Chat(1, "", False, 0.0, 0.0, None, "", SamplingSettings(), None)
NOW = datetime.now()
TEXT = st.text("ab 漢\x1b\n", max_size=90)
WIDTHS = st.integers(50, 140)


@given(TEXT, st.sampled_from(["", "work", "漢" * 40]), st.booleans(), WIDTHS)
def test_a_chat_fills_the_width_of_the_list(
    title: str, folder: str, is_pinned: bool, width: int
) -> None:
    chat = replace(CHAT, title=title, folder=folder, is_pinned=is_pinned)
    assert width_of(chat_row(ChatRow(chat, ChatSize(12, 3456)), NOW, width)) == width


@given(TEXT, st.booleans(), WIDTHS)
def test_a_hit_fills_the_width_of_the_list(title: str, is_archived: bool, width: int) -> None:
    hit = SearchHit(1, title, 2, "user", "a text", (), 0.0, False, is_archived)
    assert width_of(hit_row(hit, NOW, width)) == width
