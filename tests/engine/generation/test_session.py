"""The loop on a fake model: the text never depends on who guesses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Forward
from engine.configuration import (
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import (
    ContextFullError,
    DecodeAborted,
    DecodeError,
    EngineError,
    IncompatiblePairError,
)
from engine.events import (
    CacheChanged,
    Event,
    FinishReason,
    PromptProgress,
    PromptReady,
    RoundFinished,
    SpeculationChanged,
    TokenKind,
    TokensCommitted,
)
from engine.requests import Cancellation, Message
from engine.testing import FakeBackend, FakeSequence
from tests.support.sessions import (
    COSTS,
    DRAFT,
    GREEDY,
    LETTERS,
    LOOKUP,
    OFF,
    WARM,
    as_message,
    committed,
    finished,
    make_session,
    ready,
    request,
    rounds,
    run,
)

PENALISED = replace(WARM, repetition_penalty=1.3)


@pytest.mark.parametrize("sampling", [GREEDY, WARM, PENALISED])
@pytest.mark.parametrize("bonus", [True, False])
def test_the_text_is_the_same_with_any_predictor_and_every_draft_length(
    sampling: SamplingSettings, bonus: bool
) -> None:
    readers = replace(LOOKUP, lookup_pattern_min=1, suffix_min_confidence=0.1, bonus_token=bonus)
    for seed in range(2):
        wanted = request(sampling=sampling, seed=seed)
        plain = finished(run(make_session(OFF), wanted))
        assert plain.stats.n_drafted == 0
        kinds = (PredictorName.LOOKUP, PredictorName.SUFFIX, PredictorName.DRAFT)
        for predictor, n_draft, controller in product(kinds, (1, 3, 16), ControllerName):
            speculation = replace(
                readers, predictor=predictor, n_draft=n_draft, controller=controller
            )
            reply = finished(run(make_session(speculation), wanted))
            assert reply.token_ids == plain.token_ids
            assert reply.text == plain.text
            assert reply.reason == plain.reason


def test_drafts_are_really_accepted_and_rounds_saved() -> None:
    backend = FakeBackend(LETTERS)
    plain = finished(run(make_session(OFF, target=FakeBackend(LETTERS)), request()))
    reply = finished(run(make_session(DRAFT, target=backend), request()))
    assert reply.stats.n_accepted > 10
    assert reply.stats.n_rounds < plain.stats.n_rounds


def test_the_cache_holds_everything_but_the_pending_token() -> None:
    backend = FakeBackend(LETTERS)
    sequence = backend.open()
    backend.open = lambda: sequence  # type: ignore[method-assign]  # to look into it
    session = make_session(DRAFT, target=backend)
    line: list[int] = []
    n_prompt = 0
    for event in session.generate(request(), Cancellation()):
        if isinstance(event, PromptReady):
            n_prompt = event.n_prompt
        if isinstance(event, TokensCommitted):
            line += [token.token for token in event.tokens]
        if isinstance(event, RoundFinished):
            assert list(sequence.tokens)[n_prompt:] == line[:-1]
    assert len(line) == 60


def test_counts_are_separate_and_add_up() -> None:
    events = run(make_session(DRAFT), request())
    stats = finished(events).stats
    reported = rounds(events)
    assert stats.n_drafted == sum(r.n_drafted for r in reported)
    assert stats.n_emitted == sum(r.n_emitted for r in reported)
    assert stats.n_accepted == stats.by_source["draft"].n_accepted
    assert stats.n_accepted <= stats.n_examined <= stats.n_verified <= stats.n_drafted
    assert len(finished(events).token_ids) == stats.n_emitted
    for each in reported:
        assert sum(each.verdicts) == each.n_accepted


def test_the_second_turn_prefills_only_what_is_new() -> None:
    backend = FakeBackend(LETTERS)
    session = make_session(OFF, target=backend)
    first = finished(run(session, request()))
    backend.n_decoded = 0
    messages = (
        Message("user", "abcabcabc"),
        as_message(first),
        Message("user", "go on"),
    )
    read = ready(run(session, request(messages=messages, max_tokens=1)))
    assert read.n_reused == 13 + len(first.token_ids) - 1
    n_new = read.n_prompt - read.n_reused
    assert backend.n_decoded == n_new
    assert n_new < 20


def test_a_recurrent_model_is_refilled_from_the_start_and_is_not_drafted_for() -> None:
    backend = FakeBackend(LETTERS, can_crop=False)
    session = make_session(LOOKUP, target=backend)
    assert session.predictors == ("off",)
    first = finished(run(session, request("abcdef")))
    again = run(session, request("abcxyz"))
    assert first.stats.n_drafted == 0
    assert ready(again).n_reused == 0
    change = next(event for event in again if isinstance(event, SpeculationChanged))
    assert change.predictor == "off"
    assert "not available" in (change.note or "")


def test_a_draft_for_a_recurrent_model_is_refused_with_the_reason() -> None:
    with pytest.raises(IncompatiblePairError, match="recurrent"):
        make_session(DRAFT, target=FakeBackend(LETTERS, can_crop=False))


@pytest.mark.parametrize("settings", [OFF, LOOKUP, DRAFT])
def test_max_tokens_is_never_overshot(settings: SpeculationSettings) -> None:
    for n in (1, 2, 3, 7, 20):
        reply = finished(run(make_session(settings), request(max_tokens=n)))
        assert len(reply.token_ids) == n
        assert reply.reason is FinishReason.LENGTH


@pytest.mark.parametrize("settings", [OFF, LOOKUP, DRAFT])
def test_the_reply_ends_when_every_cell_is_used(settings: SpeculationSettings) -> None:
    target = FakeBackend(LETTERS, n_ctx=40)
    events = run(make_session(settings, target=target), request(max_tokens=None))
    assert finished(events).reason is FinishReason.CONTEXT
    assert finished(events).n_used == 40
    plain = finished(run(make_session(OFF, target=FakeBackend(LETTERS, n_ctx=40)), request()))
    assert finished(events).text == plain.text


@pytest.mark.parametrize("settings", [OFF, LOOKUP, DRAFT])
def test_an_end_token_inside_a_draft_ends_the_reply(settings: SpeculationSettings) -> None:
    for seed in range(6):
        ends = FakeBackend(LETTERS, end_bias=4.5, sharpness=2.0)
        draft = FakeBackend(LETTERS, end_bias=4.5, sharpness=2.0)
        plain_backend = FakeBackend(LETTERS, end_bias=4.5, sharpness=2.0)
        wanted = request(sampling=WARM, seed=seed, max_tokens=200)
        has_draft = settings.predictor is PredictorName.DRAFT
        session = make_session(settings, target=ends, draft=draft if has_draft else None)
        reply = finished(run(session, wanted))
        plain = finished(run(make_session(OFF, target=plain_backend), wanted))
        assert reply.reason is FinishReason.END
        assert reply.token_ids == plain.token_ids
        assert LETTERS.eos not in reply.token_ids


@pytest.mark.parametrize("settings", [LOOKUP, DRAFT], ids=["lookup", "draft"])
def test_tokens_drafted_after_the_end_of_a_reply_are_not_accepted(
    settings: SpeculationSettings,
) -> None:
    whole = finished(run(make_session(settings), request())).text
    n_cut = 0
    for at in range(2, len(whole) - 1):
        events = run(make_session(settings), request(stop=(whole[at : at + 1],)))
        stats = finished(events).stats
        tokens = committed(events)
        assert stats.n_accepted == sum(token.kind is TokenKind.DRAFT for token in tokens)
        assert sum(each.n_accepted for each in stats.by_position) == stats.n_accepted
        n_cut += tokens[-1].kind is TokenKind.DRAFT
    assert n_cut or settings is LOOKUP, "no reply ended inside a draft"


def test_a_stop_string_ends_the_reply_and_is_not_part_of_it() -> None:
    whole = finished(run(make_session(OFF), request())).text
    stop = whole[10:13]
    for settings in (OFF, LOOKUP, DRAFT):
        reply = finished(run(make_session(settings), request(stop=(stop,))))
        assert reply.reason is FinishReason.STOP_STRING
        assert reply.text == whole[: whole.index(stop)]


def test_the_shown_text_is_the_whole_text() -> None:
    events = run(make_session(DRAFT), request(stop=("zzzzzz",)))
    shown = "".join(event.text for event in events if isinstance(event, TokensCommitted))
    assert shown == finished(events).text


def test_a_prompt_longer_than_the_context_is_refused_with_numbers() -> None:
    session = make_session(OFF, target=FakeBackend(LETTERS, n_ctx=32))
    with pytest.raises(ContextFullError, match="104 tokens"):
        run(session, request("a" * 100))
    assert finished(run(session, request("abc"))).token_ids


def test_cancelling_keeps_the_partial_text_and_the_session() -> None:
    session = make_session(LOOKUP)
    cancellation = Cancellation()
    events: list[Event] = []
    for event in session.generate(request(), cancellation):
        events.append(event)
        if isinstance(event, TokensCommitted) and len(events) > 20:
            cancellation.cancel()
    reply = finished(events)
    assert reply.reason is FinishReason.CANCELLED
    assert reply.text
    whole = finished(run(session, request()))
    assert whole.reason is FinishReason.LENGTH
    assert whole.text.startswith(reply.text)


class StoppedSequence(FakeSequence):
    """Computes three tokens of a draft, and is stopped then."""

    def verify(self, tokens: Sequence[int], *, unread: Sequence[int] = ()) -> Forward:
        if len(tokens) > 3:
            self._decode((*unread, *tokens[:3]))
            raise DecodeAborted("stopped")
        return super().verify(tokens, unread=unread)


@pytest.mark.parametrize("can_slice", [True, False])
def test_what_was_drafted_and_not_verified_is_held_by_nobody_after_a_stop(can_slice: bool) -> None:
    backend = FakeBackend(LETTERS, sharpness=2.0, can_slice=can_slice)
    sequence = StoppedSequence(backend)
    backend.open = lambda: sequence  # type: ignore[method-assign]  # to look into it
    reply = finished(run(make_session(DRAFT, target=backend), request()))
    assert reply.reason is FinishReason.CANCELLED
    assert list(sequence.tokens)[reply.stats.n_prompt :] == list(reply.token_ids)[:-1]


def test_cancelling_before_the_start_decodes_nothing() -> None:
    backend = FakeBackend(LETTERS)
    session = make_session(OFF, target=backend)
    cancellation = Cancellation()
    cancellation.cancel()
    reply = finished(list(session.generate(request(), cancellation)))
    assert reply.reason is FinishReason.CANCELLED
    assert backend.n_decoded == 0


def test_a_second_reply_is_refused_while_one_is_made_and_leaves_it_alone() -> None:
    alone = finished(run(make_session(LOOKUP), request()))
    session = make_session(LOOKUP)
    reply = session.generate(request(), Cancellation())
    events = [next(reply) for _ in range(20)]

    with pytest.raises(EngineError):
        run(session, request("xyz"))

    assert finished([*events, *reply]).text == alone.text
    assert finished(run(session, request())).text == alone.text


@pytest.mark.parametrize("n_events", [0, 1, 2, 3, 20])
def test_a_reply_that_was_let_go_leaves_the_session_to_the_next(n_events: int) -> None:
    alone = finished(run(make_session(LOOKUP), request("xyz")))
    session = make_session(LOOKUP)
    reply = session.generate(request(), Cancellation())
    for _ in range(n_events):
        next(reply)
    reply.close()
    assert finished(run(session, request("xyz"))).text == alone.text


class Failing(FakeBackend):
    """Its `n_good`th pass and those before it succeed."""

    n_good = 20

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        if self.n_decodes > self.n_good:
            raise DecodeError("llama_decode gave -3: load the model again")
        return super().logits_after(tokens)


@pytest.mark.parametrize("settings", [OFF, LOOKUP])
def test_a_reply_that_fails_reports_all_committed_tokens(
    settings: SpeculationSettings,
) -> None:
    whole = finished(run(make_session(settings), request())).text
    reported: list[Event] = []
    for n_good in range(4, 20):
        target = Failing(LETTERS, sharpness=2.0)
        target.n_good = n_good
        held_back = tuple(f"{letter}?" for letter in set(whole))  # might begin with any letter
        reply = make_session(settings, target=target).generate(
            request(stop=held_back), Cancellation()
        )
        reported = []
        with pytest.raises(DecodeError):
            reported.extend(reply)
        committed = [event for event in reported if isinstance(event, TokensCommitted)]
        n_tokens = sum(len(event.tokens) for event in committed)
        assert "".join(event.text for event in committed) == whole[:n_tokens]
        assert isinstance(reported[-1], CacheChanged)
    assert n_tokens > 1


def test_the_predictor_can_be_switched_in_the_middle_of_a_reply() -> None:
    session = make_session(OFF)
    plain = finished(run(make_session(OFF), request()))
    seen: list[str] = []
    events: list[Event] = []
    for event in session.generate(request(), Cancellation()):
        events.append(event)
        if isinstance(event, SpeculationChanged):
            seen.append(event.predictor)
        if isinstance(event, RoundFinished) and len(rounds(events)) == 10:
            session.set_speculation(LOOKUP)
    assert seen == ["off", "lookup"]
    assert finished(events).text == plain.text


def test_a_draft_model_that_fails_is_switched_off_and_the_reply_goes_on() -> None:
    class Failing(FakeBackend):
        def logits_after(self, tokens: object) -> object:  # type: ignore[override]
            raise ContextFullError("the draft is broken")

    plain = finished(run(make_session(OFF), request()))
    events = run(make_session(DRAFT, draft=Failing(LETTERS)), request())
    assert finished(events).text == plain.text
    notes = [event.note for event in events if isinstance(event, SpeculationChanged)]
    assert any("is broken" in (note or "") for note in notes)


def test_progress_counts_from_the_reused_prefix_to_the_whole_prompt() -> None:
    events = run(make_session(OFF), request("a" * 50))
    progress = [event for event in events if isinstance(event, PromptProgress)]
    assert [p.n_done for p in progress] == [0, 16, 32, 48, 53, 54]
    assert all(p.n_total == 54 for p in progress)


def test_a_drawn_seed_is_reported_and_repeats_the_text() -> None:
    wanted = request(seed=None, sampling=WARM)
    first, other = (finished(run(make_session(OFF), wanted)) for _ in range(2))
    assert first.seed != other.seed
    again = finished(run(make_session(LOOKUP), replace(wanted, seed=first.seed)))
    assert again.text == first.text


def test_a_reply_without_a_draft_has_saved_and_lost_nothing() -> None:
    events = run(make_session(OFF), request())
    stats = finished(events).stats
    assert stats.plain_spread is not None
    assert (stats.saved_s, stats.saved_error_s, stats.speedup) == (None, None, None)
    assert {each.saved_s for each in rounds(events)} == {None}


def cells(events: list[Event]) -> Iterator[CacheChanged]:
    return (event for event in events if isinstance(event, CacheChanged))


def test_used_cells_are_reported_each_round() -> None:
    events = run(make_session(LOOKUP), request())
    used = [event.n_used for event in cells(events)]
    assert used[0] == len("BU" + "abcabcabc" + "EA")
    assert used == sorted(used)
    assert used[-1] == finished(events).n_used


class TimedBackend(FakeBackend):
    """A batch takes one second, and half a second more for each of its tokens."""

    now_s = 0.0

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.now_s = self.n_decodes + self.n_decoded / 2
        return super().logits_after(tokens)


def test_the_time_of_the_first_pass_is_the_prompts_but_for_one_plain_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = TimedBackend(LETTERS, n_batch=64)
    clock = SimpleNamespace(perf_counter=lambda: target.now_s)
    monkeypatch.setattr("engine.clock.time", clock)
    session = make_session(OFF, target=target)
    first, second = (
        finished(run(session, request(text * 20, max_tokens=12, seed=None))).stats for text in "ab"
    )
    n_prompt, n_computed = first.n_prompt, second.n_prompt - second.n_reused
    first_pass = 1 + n_prompt / 2
    assert first.plain_step_s == second.plain_step_s == 1.5
    assert first.decode_s == pytest.approx(first_pass / n_prompt + 11 * 1.5)
    assert second.decode_s == pytest.approx(12 * 1.5)
    assert second.first_token_s == pytest.approx(1 + n_computed / 2)
    assert second.prefill_s == pytest.approx(second.first_token_s - 1.5)
    assert first.first_token_s == pytest.approx(first_pass)
    assert first.prefill_s == pytest.approx(first_pass * (1 - 1 / n_prompt))


def test_a_session_leaves_the_costs_that_it_measured() -> None:
    session = make_session(DRAFT)
    assert session.costs() is None
    for n_draft in (1, 2, 3):
        session.set_speculation(replace(DRAFT, n_draft=n_draft))
        run(session, request())
    costs = session.costs()
    assert costs is not None
    assert {n_rows for n_rows, _ in costs.points} >= {1, 2, 3, 4}


def test_a_session_starts_with_the_costs_that_another_left() -> None:
    session = make_session(OFF, costs=COSTS)
    run(session, request(max_tokens=2))
    costs = session.costs()
    assert costs is not None
    assert [n_rows for n_rows, _ in costs.points] == [n_rows for n_rows, _ in COSTS.points]


def test_a_late_cancel_does_not_stop_the_next_reply() -> None:
    session = make_session(OFF)
    late = Cancellation()
    list(session.generate(request(), late))
    events: list[Event] = []
    for event in session.generate(request(), Cancellation()):
        events.append(event)
        late.cancel()
    assert finished(events).reason is FinishReason.LENGTH


def test_a_session_is_closed_after_its_replies_only_and_makes_none_afterwards() -> None:
    target = FakeBackend(LETTERS, sharpness=2.0)
    session = make_session(target=target)
    reply = session.generate(request(), Cancellation())
    next(reply)
    with pytest.raises(EngineError, match="is generating"):
        session.close()
    assert not target.is_closed
    reply.close()
    session.close()
    assert target.is_closed
    with pytest.raises(EngineError, match="is closed"):
        run(session, request())


def test_a_reply_that_is_stopped_at_its_first_token_keeps_what_was_read() -> None:
    target = FakeBackend(LETTERS, n_batch=16)
    session, cancellation = make_session(OFF, target=target), Cancellation()
    events: list[Event] = []
    for event in session.generate(request("a" * 50, seed=None), cancellation):
        events.append(event)
        if isinstance(event, PromptProgress) and event.n_done == 48:
            cancellation.cancel()
    assert finished(events).reason is FinishReason.CANCELLED
    assert finished(events).n_used == 48
    assert finished(run(session, request("a" * 50))).stats.n_reused == 48
