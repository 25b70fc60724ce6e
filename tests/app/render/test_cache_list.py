from dataclasses import replace

import pytest

from app.cache import NOBODY, cached_chats
from app.chat.snapshot import CockpitSnapshot, Phase
from app.format import NO_VALUE, ago
from app.render.cache_list import (
    chat_detail,
    chat_line,
    empty_text,
    log_lines,
    owners_text,
    state_detail,
    state_line,
    table_head,
    title_line,
)
from app.render.lines import Line, plain, width_of
from engine.cache.report import CacheEntry, CacheNote, CacheReport, TierName, TierUse
from engine.events import ServerFigure
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


def test_a_shared_state_is_in_every_chat_and_its_bytes_are_told_apart() -> None:
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


@pytest.mark.parametrize("width", [1, 12, 30, 46, 74, 140])
def test_rows_and_head_fill_the_same_width(width: int) -> None:
    chat = cached_chats((STATE,))[0]
    rows = [
        table_head(width),
        state_line(STATE, TITLES, width, NOW),
        chat_line(chat, TITLES, width, NOW),
    ]
    assert [width_of(row) for row in rows] == [width] * 3


def test_columns_stand_below_their_names() -> None:
    head, row = (plain(line) for line in (table_head(74), state_line(STATE, TITLES, 74, NOW)))
    for name, value in (("tokens", "300-1,104"), ("bytes", "18M"), ("uses", "47"),
                        ("used", "3 min"), ("spares", "1.2 s")):  # fmt: skip
        assert head.index(name) + len(name) == row.index(value) + len(value), name


def test_where_it_lies_outlives_other_columns_when_there_is_no_room() -> None:
    assert "where" in plain(table_head(46))
    assert "uses" not in plain(table_head(46))


@pytest.mark.parametrize(
    ("tiers", "marks"),
    [(("hot", "warm", "cold"), "HWC"), (("cold",), "··C"), (("hot",), "H··")],
)
def test_each_tier_has_a_letter_and_a_colour(tiers: tuple[TierName, ...], marks: str) -> None:
    line = state_line(replace(STATE, tiers=tiers), TITLES, 74, NOW)
    assert marks in plain(line)
    assert {f"tier-{tier}" for tier in tiers} <= {run.style for run in line}


def test_a_chat_of_which_a_tier_holds_a_part_has_a_small_letter() -> None:
    one = next(c for c in cached_chats((STATE, SHARED)) if c.owner == "chat:1")
    assert "·wC" in plain(chat_line(one, TITLES, 74, NOW))


def test_pins_are_told_of_all_or_some() -> None:
    chats = cached_chats((STATE, SHARED))
    shown = {chat.owner: plain(chat_line(chat, TITLES, 74, NOW)) for chat in chats}
    assert " part " in shown["chat:1"]
    assert " part " in shown["chat:2"], "all that is kept of it is the start of another chat"
    alone = cached_chats((replace(STATE, is_pinned=True),))[0]
    assert " pinned " in plain(chat_line(alone, TITLES, 74, NOW))


def test_a_pin_is_told_with_the_chats_that_share_it() -> None:
    chats = {chat.owner: chat for chat in cached_chats((STATE, SHARED))}
    said = text(chat_detail(chats["chat:2"], TITLES, 60, NOW, "block"))
    assert "pinned all of it, together with “The plan”" in said


def test_the_log_calls_a_state_by_its_chats() -> None:
    note = CacheNote(0.0, f"State {STATE.key} is pinned.")
    owners = {STATE.key: STATE.owners}
    assert "A state of “The plan” is pinned." in text(log_lines((note,), 60, owners, TITLES))
    assert STATE.key in text(log_lines((note,), 60, {}, TITLES))


def test_hostile_titles_are_only_text() -> None:
    rows = [state_line(OTHER, TITLES, 74, NOW), *state_detail(OTHER, TITLES, 44, NOW)]
    assert "\x1b" not in text(rows)
    assert all("\n" not in plain(row) for row in rows)


def test_long_lines_keep_to_their_column() -> None:
    far = replace(STATE, start=99_900, n_tokens=131_072)
    line = plain(state_line(far, TITLES, 74, NOW))
    assert "99.9k-131k" in line
    assert len(line) == 74


def test_a_time_that_was_not_measured_is_a_dash() -> None:
    unknown = replace(STATE, recompute_s=0.0)
    assert plain(state_line(unknown, TITLES, 74, NOW)).endswith(NO_VALUE)
    assert "not measured" in text(state_detail(unknown, TITLES, 44, NOW))


def test_a_state_is_told_in_full() -> None:
    shown = text(state_detail(replace(STATE, is_pinned=True), TITLES, 44, NOW))
    for part in ("00ff00ff00ff00ff", "300 to 1,104, 804 tokens of its own",
                 "warm, cold: 18 MiB, pinned", "47 times, last 3 min ago", "The plan"):  # fmt: skip
        assert part in shown
    fresh = text(state_detail(replace(STATE, n_uses=0, used_at=NOW), TITLES, 44, NOW))
    assert "not yet, saved just now" in fresh


def test_where_a_chat_lies_is_drawn_tier_by_tier() -> None:
    one = next(c for c in cached_chats((STATE, SHARED)) if c.owner == "chat:1")
    lines = [plain(line) for line in chat_detail(one, TITLES, 44, NOW, "block")]
    assert lines[2].startswith("hot    ░")
    assert lines[3].startswith("warm   █")
    assert lines[3].endswith("804")
    assert lines[4].endswith("1,104")
    assert "░" not in lines[4]
    assert "25 MiB, 7 MiB of it other" in "\n".join(lines)
    whole = replace(one, n_shared_bytes=one.nbytes)
    assert "25 MiB, all of it other" in text(chat_detail(whole, TITLES, 44, NOW, "block"))


def test_what_was_never_used_has_no_time_of_use() -> None:
    unused = replace(STATE, n_uses=0)
    assert fmt_ago(STATE) in plain(state_line(STATE, TITLES, 74, NOW))
    assert fmt_ago(STATE) not in plain(state_line(unused, TITLES, 74, NOW))


def fmt_ago(entry: CacheEntry) -> str:
    return ago(NOW - entry.used_at)


def test_the_log_is_told_in_full_newest_first() -> None:
    notes = (CacheNote(0.0, "first"), CacheNote(9.0, "a long story " * 6, is_problem=True))
    lines = log_lines(notes, 40, {}, {})
    assert all(width_of(line) <= 40 for line in lines)
    assert " ! a long story" in plain(lines[0])
    assert text(lines).count("story") == 6
    assert plain(lines[-1]).endswith("first")
    assert "no notes" in text(log_lines((), 40, {}, {}))


def test_an_empty_table_says_why() -> None:
    off = CacheReport((TierUse("warm", 0, 0, 0, 0), TierUse("cold", 0, 0, 0, 0)))
    on = CacheReport((TierUse("warm", 0, 0, 0, MIB),))
    ready = CockpitSnapshot(phase=Phase.READY)
    assert "No model is loaded" in empty_text(CockpitSnapshot())
    assert "not reported yet" in empty_text(ready)
    served = replace(ready, tiers=off, server=(ServerFigure("cache", "slots: 1 of 2 busy"),))
    assert "A server keeps" in empty_text(served)
    assert "[cache] in the settings is off" in empty_text(replace(ready, tiers=off))
    assert "saved after each reply" in empty_text(replace(ready, tiers=on))


def test_the_title_tells_that_a_report_lists_the_last_ones_only() -> None:
    many = CacheReport((TierUse("cold", 900, 1, 1, MIB),), entries=(STATE, OTHER))
    snapshot = CockpitSnapshot(tiers=many)
    assert "2 states of 2 chats, those used last of 900" in plain(
        title_line(snapshot, 2, is_by_chat=True)
    )
    few = replace(snapshot, tiers=replace(many, tiers=(TierUse("cold", 2, 1, 1, MIB),)))
    assert "those used last" not in plain(title_line(few, 2, is_by_chat=False))
