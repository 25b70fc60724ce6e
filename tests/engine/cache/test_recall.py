"""Where a reply begins, and what is kept of it, on a fake model that tells wrong states apart."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.base import Logits
from engine.cache.namespace import Namespace
from engine.cache.prefix_cache import PrefixCache
from engine.cache.recall import Recall, Recalled, TokenRate
from engine.cache.report import CacheSettings
from engine.configuration import PredictorName, SpeculationSettings
from engine.errors import LogitsError, StateError
from engine.events import Event, Finished, PromptReady, TiersChanged
from engine.generation.session import Session
from engine.model.chat_template import ChatTemplate
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import TEMPLATE, FakeBackend, FakeSequence, FakeVocabulary

LETTERS = FakeVocabulary(26, ord("a"))
SETTINGS = CacheSettings(min_tokens=4, checkpoint_tokens=0, reserve_bytes=0)
OFF = SpeculationSettings(predictor=PredictorName.OFF)
LINE = [n % 26 for n in range(60)]


def tiers_of(backend: FakeBackend, settings: CacheSettings = SETTINGS) -> PrefixCache:
    return PrefixCache(
        Namespace("test", "model.gguf", ()),
        can_slice=backend.can_slice,
        split_state=backend.split_state,
        store=None,
        settings=settings,
        in_background=False,
    )


def recall_of(backend: FakeBackend, settings: CacheSettings = SETTINGS) -> Recall:
    recall = Recall(backend)
    recall.attach(tiers_of(backend, settings), settings)
    return recall


def compute(recall: Recall, tokens: list[int], owner: str) -> int:
    """Hold a line and keep it; gives the tokens that had to be computed."""
    recalled = begun(recall, tokens, owner)
    for start in range(recalled.n_reused, len(tokens), 16):
        recalled.sequence.prefill(tokens[start : start + 16])
    recall.keep_ended()
    return len(tokens) - recalled.n_reused


def begun(recall: Recall, tokens: list[int], owner: str) -> Recalled:
    """Where a reply begins, which leaves its slot to the next at once."""
    recalled = recall.begin(tokens, owner)
    recall.end(recalled.slot)
    return recalled


def session_of(backend: FakeBackend, settings: CacheSettings | None = SETTINGS) -> Session:
    session = Session(backend, ChatTemplate(TEMPLATE, bos="<bos>", eos="<end>"), OFF)
    if settings is not None:
        session.attach_cache(tiers_of(backend, settings), settings)
    return session


def answer(session: Session, wanted: GenerationRequest) -> list[Event]:
    events = list(session.generate(wanted, Cancellation()))
    session.keep()
    return events


def last(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def asked(text: str, owner: str = "chat:1") -> GenerationRequest:
    return GenerationRequest((Message("user", text),), max_tokens=20, seed=1, owner=owner)


def test_a_line_that_another_chat_pushed_out_comes_back_from_memory() -> None:
    recall = recall_of(FakeBackend())
    compute(recall, LINE, "chat:1")
    compute(recall, LINE[::-1], "chat:2")

    recalled = begun(recall, [*LINE, 3], "chat:1")

    assert (recalled.n_hot, recalled.n_warm, recalled.n_cold) == (0, 60, 0)
    assert list(recalled.sequence.tokens) == LINE


@pytest.mark.parametrize(
    ("kept_s", "rate_s", "saved_s"),
    [(0.0, None, None), (6.0, None, 6.0), (6.0, 0.2, 12.0), (0.0, 0.2, 12.0)],
    ids=["never timed", "as its state says", "as this session says", "state does not say"],
)
def test_what_restoring_saved_is_told_by_what_was_timed(
    kept_s: float, rate_s: float | None, saved_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall = recall_of(FakeBackend())
    monkeypatch.setattr(TokenRate, "seconds_of", lambda _, n: kept_s / 60 * n or None)
    compute(recall, LINE, "chat:1")
    compute(recall, LINE[::-1], "chat:2")
    monkeypatch.setattr(TokenRate, "seconds_of", lambda _, n: rate_s and rate_s * n)

    begun(recall, [*LINE, 3], "chat:1")

    told = recall.report().counts.saved_s
    assert told is None if saved_s is None else told == pytest.approx(saved_s, abs=0.5)


def test_what_the_context_holds_is_not_restored() -> None:
    recall = recall_of(FakeBackend())
    compute(recall, LINE, "chat:1")

    recalled = begun(recall, [*LINE, 3], "chat:1")

    assert (recalled.n_hot, recalled.n_warm) == (60, 0)


def test_only_what_is_new_of_a_line_is_saved_where_states_can_be_cut() -> None:
    backend = FakeBackend()
    recall = recall_of(backend)
    compute(recall, LINE[:40], "chat:1")
    compute(recall, LINE, "chat:1")

    starts = sorted((entry.start, entry.n_tokens) for entry in recall.report().entries)

    assert starts == [(0, 40), (40, 60)]


def test_fewer_new_tokens_than_the_threshold_are_not_saved() -> None:
    backend = FakeBackend()
    recall = recall_of(backend)
    compute(recall, LINE[:40], "chat:1")
    compute(recall, LINE[:43], "chat:1")

    assert backend.n_saved == 1


def test_nothing_is_kept_for_nobody() -> None:
    backend = FakeBackend()
    recall = recall_of(backend)
    compute(recall, LINE, "")

    assert backend.n_saved == 0


def test_a_state_that_the_backend_refuses_is_dropped_and_the_prompt_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = FakeBackend()
    recall = recall_of(backend)
    compute(recall, LINE, "chat:1")
    compute(recall, LINE[::-1], "chat:2")

    def refuse(*_: object) -> None:
        raise StateError("of another make")

    with monkeypatch.context() as patch:
        patch.setattr(FakeSequence, "load", refuse)
        recalled = begun(recall, [*LINE, 3], "chat:1")
    report = recall.report()

    assert recalled.n_reused == 0
    assert report.counts.n_refused == 1
    assert [note.text for note in report.notes if note.is_problem] == ["of another make"]
    assert begun(recall, [*LINE, 3], "chat:1").n_reused == 0


def test_states_that_cannot_be_cut_are_kept_at_the_end_of_the_prompt_and_of_the_reply() -> None:
    session = session_of(FakeBackend(LETTERS, can_crop=False))
    first = last(answer(session, asked("abcdefghijklmnopqrstuvwxyz")))
    answer(session, asked("zyxwvutsrqponmlkjihgfedcba", "chat:2"))

    again = last(answer(session, asked("abcdefghijklmnopqrstuvwxyz")))
    report = session.cache_report()

    assert again.text == first.text
    assert again.stats.n_reused == again.stats.n_prompt - 1
    assert {(entry.start, entry.n_tokens) for entry in report.entries if "chat:1" in entry.owners}


def test_a_chat_whose_states_cannot_be_cut_keeps_the_newest_few() -> None:
    backend = FakeBackend(can_crop=False)
    recall = recall_of(backend)
    for n in range(1, 12):
        compute(recall, LINE[: 5 * n], "chat:1")
    entries = recall.report().entries
    assert sorted(entry.n_tokens for entry in entries) == [40, 45, 50, 55]


def test_of_a_line_that_is_no_longer_numbers_nothing_is_kept() -> None:
    class Broken(FakeBackend):
        is_broken = True

        def logits_behind(self, tokens: Sequence[int]) -> Logits:
            row = super().logits_behind(tokens)
            return np.full_like(row, np.nan) if self.is_broken else row

    backend = Broken()
    session = session_of(backend, replace(SETTINGS, checkpoint_tokens=16))
    with pytest.raises(LogitsError):
        answer(session, asked("abc" * 20))
    session.keep()
    assert session.cache_report().entries == ()
    backend.is_broken = False
    reply = last(answer(session, asked("abc" * 20)))
    assert reply.stats.n_reused == 0


def test_where_lines_part_a_state_is_made_that_the_third_one_begins_with() -> None:
    recall = recall_of(FakeBackend(LETTERS, can_crop=False))
    session = session_of(FakeBackend(LETTERS, can_crop=False))
    shared = "abcdefghijklmnopqrst"
    answer(session, asked(shared + "u", "chat:1"))
    answer(session, asked(shared + "v", "chat:2"))

    third = last(answer(session, asked(shared + "w", "chat:3")))

    assert third.stats.n_reused >= len(shared)
    assert recall.report().tiers[0].name == "hot"


def test_a_long_reply_is_kept_on_the_way() -> None:
    settings = replace(SETTINGS, checkpoint_tokens=16)
    session = session_of(FakeBackend(LETTERS, end_bias=-40.0), settings)
    wanted = replace(asked("abc"), max_tokens=70)

    events = answer(session, wanted)
    seen = [event for event in events if isinstance(event, TiersChanged)]

    assert len(seen) >= 3
    assert seen[1].report.tiers[1].n_tokens >= 32


def test_the_panel_is_told_where_the_prompt_came_from() -> None:
    session = session_of(FakeBackend(LETTERS))
    answer(session, asked("abcdefghijklmnopqrstuvwxyz"))
    answer(session, asked("zyxwvutsrqponmlkjihgfedcba", "chat:2"))

    events = answer(session, asked("abcdefghijklmnopqrstuvwxyz"))
    ready = next(event for event in events if isinstance(event, PromptReady))

    assert ready.n_warm == ready.n_reused > 0
    assert (ready.n_hot, ready.n_cold) == (0, 0)


def test_a_reply_that_was_cut_goes_on_as_if_it_had_not_been() -> None:
    session = session_of(FakeBackend(LETTERS, end_bias=-40.0))
    whole = last(answer(session, replace(asked("abc"), max_tokens=30)))
    first = last(answer(session, replace(asked("abc"), max_tokens=12)))

    events = answer(
        session, replace(asked("abc"), max_tokens=18, continues=first.token_ids, seed=1)
    )

    assert last(events).text == whole.text
    assert last(events).token_ids == whole.token_ids


def test_what_was_computed_before_the_tiers_were_open_is_saved_when_they_are() -> None:
    backend = FakeBackend(LETTERS)
    session = session_of(backend, None)
    first = last(answer(session, asked("abcde" * 10)))
    session.attach_cache(tiers_of(backend), SETTINGS)
    answer(session, asked("zyxwv" * 10, "chat:2"))

    again = last(answer(session, asked("abcde" * 10)))

    assert again.text == first.text
    assert again.stats.n_reused >= 50


@pytest.mark.parametrize("can_crop", [True, False])
@pytest.mark.parametrize("n_sequences", [1, 3])
def test_the_text_is_the_same_with_and_without_tiers(can_crop: bool, n_sequences: int) -> None:
    """A random walk over chats: ask, go on, edit, regenerate; warm memory for a few lines only."""
    draw = random.Random(f"{can_crop} {n_sequences}")
    backend = FakeBackend(LETTERS, can_crop=can_crop, n_sequences=n_sequences, n_ctx=400)
    kept = session_of(backend, replace(SETTINGS, warm_bytes=2_000, checkpoint_tokens=8))
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
        with_tiers, without = last(answer(kept, wanted)), last(answer(plain, wanted))
        assert with_tiers.text == without.text
        reply = Message("assistant", without.text, without.token_ids, without.vocabulary_id)
        chats[place] = (*messages, reply)
    assert kept.cache_report().counts.n_warm_tokens > 0
