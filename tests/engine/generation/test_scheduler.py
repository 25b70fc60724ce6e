"""Several replies at once: each has the text that it has alone."""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.base import Logits
from engine.configuration import SpeculationSettings
from engine.errors import DecodeError
from engine.events import Event, Finished, FinishReason, TokensCommitted
from engine.generation.scheduler import Generation
from engine.generation.session import Session
from engine.requests import Cancellation, GenerationRequest, Message
from engine.testing import FakeBackend
from tests.support.sessions import (
    AUTO,
    COSTS,
    DRAFT,
    GREEDY,
    LETTERS,
    LOOKUP,
    OFF,
    WARM,
    finished,
    make_session,
    run,
)

TEXTS = ("abcabcabc", "xyz", "hello there general", "aaaaaaaaaaaa", "q" * 40, "the quick fox", "no")
EVERY = [OFF, LOOKUP, DRAFT, AUTO]
NAMES = ["plain", "lookup", "draft", "auto"]


def asked(index: int, **changes: object) -> GenerationRequest:
    base = GenerationRequest(
        (Message("user", TEXTS[index % len(TEXTS)]),),
        max_tokens=10 + 7 * (index % 5),
        seed=index,
        sampling=WARM,
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name


def several(**changes: object) -> FakeBackend:
    named = {"sharpness": 2.0, "n_sequences": 3, **changes}
    return FakeBackend(LETTERS, **named)  # type: ignore[arg-type]  # fields by name


def alone(wanted: GenerationRequest, speculation: SpeculationSettings = OFF) -> Finished:
    return finished(run(make_session(speculation, costs=COSTS), wanted))


def serve(session: Session, generations: list[Generation]) -> list[list[Event]]:
    """Take all of them to their ends; returns the events of each."""
    reported: list[list[Event]] = [[] for _ in generations]
    while not all(one.is_over and not one.events for one in generations):
        assert session.step() or any(one.events for one in generations)
        for one, events in zip(generations, reported, strict=True):
            events.extend(one.take())
    return reported


def begin_all(session: Session, wanted: list[GenerationRequest]) -> list[Generation]:
    return [session.begin(each, Cancellation()) for each in wanted]


def with_one_system_prompt() -> tuple[Message, list[GenerationRequest]]:
    system = Message("system", "abcde " * 50)
    return system, [replace(asked(n), messages=(system, *asked(n).messages)) for n in range(3)]


def test_a_reply_does_not_wait_for_the_prefix_of_one_that_nobody_reads() -> None:
    _, wanted = with_one_system_prompt()
    session = make_session(target=several(n_ctx=2000))
    first = session.generate(wanted[0], Cancellation())
    next(first)
    assert finished(run(session, wanted[1])).token_ids
    assert finished(list(first)).token_ids


def test_replies_that_begin_together_compute_their_common_prefix_once() -> None:
    system, wanted = with_one_system_prompt()
    backend = several(n_ctx=2000)
    session = make_session(target=backend)
    for events, each in zip(serve(session, begin_all(session, wanted)), wanted, strict=True):
        alone_on_it = make_session(target=several(n_ctx=2000))
        assert finished(events).token_ids == finished(run(alone_on_it, each)).token_ids
    assert backend.n_decoded < 2 * len(system.content)


@pytest.mark.parametrize("speculation", EVERY, ids=NAMES)
def test_each_reply_of_a_batch_is_the_one_it_would_be_alone(
    speculation: SpeculationSettings,
) -> None:
    wanted = [asked(index) for index in range(7)]
    backend = several()
    session = make_session(speculation, target=backend, costs=COSTS)
    reported = serve(session, begin_all(session, wanted))
    for events, each in zip(reported, wanted, strict=True):
        expected, reply = alone(each), finished(events)
        assert (reply.text, reply.token_ids) == (expected.text, expected.token_ids)
        assert (reply.reason, reply.seed) == (expected.reason, expected.seed)
    assert any(len(batch) == 3 for batch in backend.batches)


@given(
    turns=st.lists(st.integers(0, 2), max_size=300),
    speculation=st.sampled_from([OFF, LOOKUP, DRAFT]),
)
@settings(max_examples=25, deadline=None)
def test_generators_taken_by_any_turns_give_the_right_tokens(
    turns: list[int], speculation: SpeculationSettings
) -> None:
    session = make_session(speculation, target=several())
    wanted = [asked(index) for index in range(3)]
    replies = [session.generate(each, Cancellation()) for each in wanted]
    reported: list[list[Event]] = [[], [], []]
    for turn in turns:
        reported[turn] += _next(replies[turn])
    for turn, reply in enumerate(replies):
        reported[turn] += reply
    assert [finished(events).token_ids for events in reported] == [
        alone(each).token_ids for each in wanted
    ]


def _next(reply: Iterator[Event]) -> list[Event]:
    event = next(reply, None)
    return [] if event is None else [event]


@given(
    arrivals=st.lists(st.integers(0, 25), min_size=2, max_size=6),
    cancelled=st.dictionaries(st.integers(0, 5), st.integers(0, 40), max_size=3),
    n_sequences=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_replies_join_and_leave_without_a_trace_in_the_others(
    arrivals: list[int], cancelled: dict[int, int], n_sequences: int
) -> None:
    session = make_session(LOOKUP, target=several(n_sequences=n_sequences))
    waiting = sorted(range(len(arrivals)), key=lambda index: arrivals[index])
    generations: dict[int, Generation] = {}
    reported: dict[int, list[Event]] = {index: [] for index in waiting}
    n_steps = 0
    while waiting or not all(one.is_over for one in generations.values()):
        while waiting and arrivals[waiting[0]] <= n_steps:
            index = waiting.pop(0)
            generations[index] = session.begin(asked(index), Cancellation())
        for index, when in cancelled.items():
            if when <= n_steps and index in generations:
                generations[index].cancellation.cancel()
        session.step()
        n_steps += 1
        for index, one in generations.items():
            reported[index] += one.take()
    for index, events in reported.items():
        expected, reply = alone(asked(index)), finished(events)
        if reply.reason is FinishReason.CANCELLED:
            assert index in cancelled
            n = len(reply.token_ids)
            assert reply.token_ids == expected.token_ids[:n]
        else:
            assert reply.token_ids == expected.token_ids
    assert finished(run(session, asked(5))).token_ids == alone(asked(5)).token_ids


def test_a_reply_that_waits_is_cancelled_without_having_begun() -> None:
    backend = several(n_sequences=1)
    session = make_session(OFF, target=backend)
    first, second = begin_all(session, [asked(0), asked(1)])
    session.step()
    second.cancellation.cancel()
    [reported, cancelled] = serve(session, [first, second])
    assert [type(event) for event in cancelled] == [Finished]
    assert finished(cancelled).reason is FinishReason.CANCELLED
    assert finished(cancelled).token_ids == ()
    assert finished(reported).token_ids == alone(asked(0)).token_ids


class FailsFor(FakeBackend):
    """A line that begins as one does which was named cannot go beyond some tokens."""

    line: tuple[int, ...] = ()

    def logits_after(self, tokens: Tokens[int]) -> Logits:
        if self.line and tuple(tokens[: len(self.line)]) == self.line and len(tokens) > 45:
            raise DecodeError("llama_decode gave -3")
        return super().logits_after(tokens)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failure_ends_the_reply_that_it_is_of_and_no_other(failing: int) -> None:
    wanted = [asked(index, max_tokens=60) for index in (0, 2, 1)]
    backend = FailsFor(LETTERS, sharpness=2.0, n_sequences=3)
    session = make_session(OFF, target=backend)
    backend.line = session.prompt_tokens(wanted[failing].messages)
    generations = begin_all(session, wanted)
    reported = serve(session, generations)
    for index, (one, events) in enumerate(zip(generations, reported, strict=True)):
        if index == failing:
            assert isinstance(one.fault, DecodeError)
            text = "".join(event.text for event in events if isinstance(event, TokensCommitted))
            assert text
            assert alone(wanted[index]).text.startswith(text)
        else:
            assert finished(events).token_ids == alone(wanted[index]).token_ids


def test_a_long_prompt_is_read_in_chunks_between_the_steps_of_others() -> None:
    backend = several(n_batch=64)
    session = make_session(OFF, target=backend)
    first = session.begin(asked(0, max_tokens=60), Cancellation())
    reported: list[Event] = []
    while not any(isinstance(event, TokensCommitted) for event in reported):
        session.step()
        reported += first.take()
    long = session.begin(replace(asked(1), messages=(Message("user", "x" * 300),)), Cancellation())
    serve(session, [first, long])
    beside = [batch for batch in backend.batches if len(batch) == 2 and max(batch) > 1]
    assert len(beside) >= 4
    assert all(min(batch) == 1 for batch in beside), "the other decodes in each of them"


def test_drafts_share_the_rows_of_a_batch() -> None:
    speculation = replace(LOOKUP, n_draft=16, lookup_pattern_min=1)
    backend = several(n_sequences=8, order=1)
    session = make_session(speculation, target=backend)
    wanted = [asked(3, seed=index, max_tokens=80, sampling=GREEDY) for index in range(8)]
    reported = serve(session, begin_all(session, wanted))
    single = make_session(OFF, target=several(order=1))
    assert sum(finished(events).stats.n_accepted for events in reported) > 100
    for events, each in zip(reported, wanted, strict=True):
        assert finished(events).token_ids == finished(run(single, each)).token_ids
