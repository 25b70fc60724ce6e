from dataclasses import replace

import pytest

from app.cache import NOBODY, cached_chats
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.cache_list import (
    chat_line,
    detail_lines,
    empty_text,
    log_lines,
    owners_text,
    state_line,
    table_head,
    title_line,
)
from app.render.lines import Line, plain, width_of
from engine.cache.report import CacheEntry, CacheNote, CacheReport, TierUse
from engine.memory.units import MIB

NOW = 100_000.0
TITLES = {"chat:1": "The plan", "chat:2": "evil\x1b[2J\ntitle"}
STATE = CacheEntry(
    "00ff00ff00ff00ff", 300, 1104, 18 * MIB, ("warm", "cold"), ("chat:1",), False, 47,
    NOW - 200, 1.25,
)  # fmt: skip
SHARED = CacheEntry(
    "aa" * 8, 0, 300, 7 * MIB, ("cold",), ("chat:1", "chat:2"), True, 90, NOW - 1, 0.7
)
OTHER = replace(STATE, key="bb" * 8, owners=("chat:2",), tiers=("cold",), n_tokens=500)


def text(lines: list[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


def test_a_shared_state_is_in_every_chat_and_its_bytes_are_separate() -> None:
    one, two = sorted(cached_chats((STATE, SHARED, OTHER)), key=lambda chat: chat.owner)
    assert (one.owner, two.owner) == ("chat:1", "chat:2")
    assert one.n_tokens == 1104
    assert one.n_by_tier == {"hot": 0, "warm": 804, "cold": 1104}
    assert (one.nbytes, one.n_shared_bytes) == (25 * MIB, 7 * MIB)
    assert [state.key for state in one.own] == [STATE.key]
    assert two.n_by_tier == {"hot": 0, "warm": 0, "cold": 500}


def test_a_chat_was_used_when_its_own_states_were() -> None:
    one = next(chat for chat in cached_chats((STATE, SHARED)) if chat.owner == "chat:1")
    assert (one.n_uses, one.used_at) == (47, NOW - 200)
    assert cached_chats((SHARED,))[0].n_uses == 90


def test_whole_states_of_one_line_count_once() -> None:
    whole = [replace(STATE, key=f"{n:016}", start=0, n_tokens=n) for n in (200, 700, 400)]
    assert cached_chats(whole)[0].n_by_tier["cold"] == 700


def test_states_of_no_chat_are_listed_too() -> None:
    assert cached_chats((replace(STATE, owners=()),))[0].owner == NOBODY
    assert owners_text((), TITLES) == "(no chat)"


def test_chats_used_last_come_first() -> None:
    late = replace(OTHER, used_at=NOW)
    assert [chat.owner for chat in cached_chats((STATE, late))] == ["chat:2", "chat:1"]


@pytest.mark.parametrize("width", [1, 30, 74, 140])
def test_rows_and_head_fill_the_same_width(width: int) -> None:
    chat = cached_chats((STATE,))[0]
    rows = [
        table_head(width),
        state_line(STATE, TITLES, NOW, width),
        chat_line(chat, TITLES, NOW, width),
    ]
    assert [width_of(row) for row in rows] == [width] * 3


def test_hostile_titles_are_only_text() -> None:
    rows = [state_line(OTHER, TITLES, NOW, 74), *detail_lines(OTHER, TITLES, NOW, 44)]
    assert "\x1b" not in text(rows)
    assert all("\n" not in plain(row) for row in rows)


def test_the_log_has_every_note_the_newest_first_with_its_sign() -> None:
    notes = (CacheNote(NOW, "State a is pinned."), CacheNote(NOW, "No space.", is_problem=True))
    newest, oldest = map(plain, log_lines(notes, 60))
    assert newest.endswith("No space.")
    assert oldest.endswith("State a is pinned.")
    assert newest.split()[1] == "!"
    assert text(log_lines((), 60)) == "no events of the cache yet"
    assert len(log_lines(notes, 20)) > 2


READY = CockpitSnapshot(phase=Phase.READY, model_name="tiny")
OFF = CacheReport((TierUse("hot", 1, 1, 1, 1), TierUse("warm", 0, 0, 0, 0)))
ON = CacheReport((TierUse("hot", 1, 1, 1, 1), TierUse("warm", 900, 0, 0, 1)), entries=(STATE,))


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (CockpitSnapshot(phase=Phase.LOADING), "load a model to list"),
        (replace(READY, server="http://cellar"), "server manages its own cache"),
        (READY, "not reported its states yet"),
        (replace(READY, tiers=OFF), "the cache is turned off"),
        (replace(READY, tiers=ON), "saves a state after each reply"),
    ],
)
def test_an_empty_table_gives_the_reason(snapshot: CockpitSnapshot, words: str) -> None:
    assert words in empty_text(snapshot)


def test_the_title_counts_states_and_chats() -> None:
    assert plain(title_line(READY, 0, is_by_chat=True)) == " saved states"
    for is_by_chat, how in ((True, "by chat"), (False, "one by one")):
        title = plain(title_line(replace(READY, tiers=ON), 1, is_by_chat=is_by_chat))
        assert title == (
            f" saved states  {how} · 1 state of 1 chat, the most recently used of 900 states · tiny"
        )
