"""Prefix reuse in a session, with a fake model that detects wrong states."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from engine.backends.base import Logits
from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.report import CacheSettings
from engine.errors import LogitsError, StateError
from engine.events import Event, TiersChanged
from engine.generation.session import Session
from engine.requests import GenerationRequest, Message
from engine.testing import FakeBackend, FakeSequence
from tests.support.sessions import LETTERS, as_message, finished, make_session, ready, run

SETTINGS = CacheSettings(min_tokens=4, checkpoint_tokens=0, reserve_bytes=0)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def tiers_of(backend: FakeBackend, settings: CacheSettings = SETTINGS) -> PrefixCache:
    return PrefixCache(
        Namespace("test", "model.gguf", ()),
        can_slice=backend.can_slice,
        store=None,
        settings=settings,
        in_background=False,
    )


def session_of(backend: FakeBackend, settings: CacheSettings | None = SETTINGS) -> Session:
    session = make_session(target=backend)
    if settings is not None:
        session.attach_cache(tiers_of(backend, settings), settings)
    return session


def answer(session: Session, wanted: GenerationRequest) -> list[Event]:
    events = run(session, wanted)
    session.keep()
    return events


def asked(text: str, owner: str = "chat:1") -> GenerationRequest:
    return GenerationRequest((Message("user", text),), max_tokens=20, seed=1, owner=owner)


class Refusing(FakeSequence):
    """Loads no state that was saved."""

    def load(self, tokens: Sequence[int], states: Sequence[bytes | memoryview]) -> None:
        raise StateError("of another make")


def test_a_state_that_the_backend_refuses_is_dropped_and_the_prompt_computed() -> None:
    backend = FakeBackend(LETTERS)
    sequence = Refusing(backend)
    backend.open = lambda: sequence  # type: ignore[method-assign]
    session = session_of(backend)
    first = finished(answer(session, asked(ALPHABET)))
    answer(session, asked(ALPHABET[::-1], "chat:2"))
    again = finished(run(session, asked(ALPHABET)))
    report = session.keep()
    assert again.text == first.text
    assert again.stats.n_reused <= len("BU")
    assert report.counts.n_refused == 1
    assert [note.text for note in report.notes if note.is_problem] == ["of another make"]


def test_whole_states_are_saved_at_the_end_of_the_prompt_and_of_the_reply() -> None:
    session = session_of(FakeBackend(LETTERS, can_crop=False))
    first = finished(answer(session, asked(ALPHABET)))
    answer(session, asked(ALPHABET[::-1], "chat:2"))

    again = finished(answer(session, asked(ALPHABET)))
    report = session.cache_report()

    assert again.text == first.text
    assert again.stats.n_reused == again.stats.n_prompt - 1
    assert {(entry.start, entry.n_tokens) for entry in report.entries if "chat:1" in entry.owners}


def test_states_with_invalid_numbers_are_not_saved() -> None:
    class Broken(FakeBackend):
        is_broken = True

        def logits_after(self, tokens: Sequence[int]) -> Logits:
            row = super().logits_after(tokens)
            return np.full_like(row, np.nan) if self.is_broken else row

    backend = Broken()
    session = session_of(backend, replace(SETTINGS, checkpoint_tokens=16))
    with pytest.raises(LogitsError):
        answer(session, asked("abc" * 20))
    session.keep()
    assert session.cache_report().entries == ()
    backend.is_broken = False
    reply = finished(answer(session, asked("abc" * 20)))
    assert reply.stats.n_reused == 0


def test_a_whole_state_is_saved_where_prompts_diverge() -> None:
    session = session_of(FakeBackend(LETTERS, can_crop=False))
    shared = "abcdefghijklmnopqrst"
    answer(session, asked(shared + "u", "chat:1"))
    answer(session, asked(shared + "v", "chat:2"))

    third = finished(answer(session, asked(shared + "w", "chat:3")))

    assert third.stats.n_reused >= len(shared)


@pytest.mark.parametrize("n_sequences", [1, 3])
def test_a_common_prefix_is_saved_once_from_the_third_chat_on(n_sequences: int) -> None:
    session = session_of(FakeBackend(LETTERS, n_sequences=n_sequences))
    shared = "abcdefghijklmnopqrstuvwxyz" * 3
    n_tokens = []
    for number, letter in enumerate("vwxyz"):
        answer(session, asked(shared + letter * 9, f"chat:{number}"))
        n_tokens.append(session.cache_report().tiers[1].n_tokens)
    n_new = [after - before for before, after in pairwise(n_tokens)]
    assert n_new[0] > len(shared), "the second chat saves the common prefix by itself"
    assert max(n_new[1:]) < len(shared)


def test_a_long_reply_is_saved_while_it_runs() -> None:
    settings = replace(SETTINGS, checkpoint_tokens=16)
    session = session_of(FakeBackend(LETTERS, end_bias=-40.0), settings)
    wanted = replace(asked("abc"), max_tokens=70)

    events = answer(session, wanted)
    seen = [event for event in events if isinstance(event, TiersChanged)]

    assert len(seen) >= 3
    assert seen[1].report.tiers[1].n_tokens >= 32


@pytest.mark.parametrize("can_crop", [True, False])
def test_states_of_the_first_prompt_are_saved_with_what_computing_them_took(can_crop: bool) -> None:
    settings = replace(SETTINGS, checkpoint_tokens=32)
    session = session_of(FakeBackend(LETTERS, can_crop=can_crop), settings)
    answer(session, asked(ALPHABET * 4))
    entries = session.cache_report().entries
    assert len(entries) > 2
    assert all(entry.recompute_s > 0 for entry in entries)


def test_an_event_reports_which_tier_held_the_prompt() -> None:
    session = session_of(FakeBackend(LETTERS))
    answer(session, asked(ALPHABET))
    answer(session, asked(ALPHABET[::-1], "chat:2"))

    events = answer(session, asked(ALPHABET))
    read = ready(events)
    assert read.n_warm == read.n_reused > 0
    assert (read.n_hot, read.n_cold) == (0, 0)


def test_a_continued_reply_has_the_text_of_an_uninterrupted_one() -> None:
    session = session_of(FakeBackend(LETTERS, end_bias=-40.0))
    whole = finished(answer(session, replace(asked("abc"), max_tokens=30)))
    first = finished(answer(session, replace(asked("abc"), max_tokens=12)))

    events = answer(
        session, replace(asked("abc"), max_tokens=18, continues=first.token_ids, seed=1)
    )

    assert finished(events).text == whole.text
    assert finished(events).token_ids == whole.token_ids


def test_states_computed_before_the_tiers_opened_are_saved_afterwards() -> None:
    backend = FakeBackend(LETTERS)
    session = session_of(backend, None)
    first = finished(answer(session, asked("abcde" * 10)))
    session.attach_cache(tiers_of(backend), SETTINGS)
    answer(session, asked("zyxwv" * 10, "chat:2"))

    again = finished(answer(session, asked("abcde" * 10)))

    assert again.text == first.text
    assert again.stats.n_reused >= 50


@pytest.mark.parametrize("can_crop", [True, False])
@pytest.mark.parametrize("n_sequences", [1, 3])
def test_the_text_is_the_same_with_and_without_tiers(can_crop: bool, n_sequences: int) -> None:
    """A random walk over chats: ask, go on, edit, regenerate; warm memory for a few lines only."""
    draw = random.Random(f"{can_crop} {n_sequences}")
    backend = FakeBackend(LETTERS, can_crop=can_crop, n_sequences=n_sequences, n_ctx=400)
    cached = session_of(backend, replace(SETTINGS, warm_bytes=2_000, checkpoint_tokens=8))
    plain = session_of(FakeBackend(LETTERS, can_crop=can_crop, n_ctx=400), None)
    chats: list[tuple[Message, ...]] = [(Message("system", "abcdefghijklmnop"),)] * 4
    for turn in range(80):
        place = draw.randrange(len(chats))
        messages = chats[place]
        if len(messages) > 5 or draw.random() < 0.3:
            messages = messages[: draw.choice((1, max(1, len(messages) - 2)))]
        text = "".join(draw.choice("abcdef") for _ in range(draw.randrange(1, 20)))
        messages = (*messages, Message("user", text))
        wanted = GenerationRequest(messages, max_tokens=15, seed=turn, owner=f"chat:{place}")
        with_tiers, without = finished(answer(cached, wanted)), finished(answer(plain, wanted))
        assert with_tiers.text == without.text
        chats[place] = (*messages, as_message(without))
    assert cached.cache_report().counts.n_warm_tokens > 0
