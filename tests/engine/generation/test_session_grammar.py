"""Replies under a grammar: with any predictor the text is that of plain decoding and fits."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from engine.backends.base import Forward
from engine.configuration import (
    ControllerName,
    PredictorName,
    SamplingSettings,
    SpeculationSettings,
)
from engine.errors import TokenError
from engine.events import Event, Finished, FinishReason
from engine.grammar.mask import Grammars
from engine.grammar.source import GrammarError
from engine.requests import Cancellation, GenerationRequest, Grammar, Message
from engine.testing import FakeBackend
from tests.support.sessions import OFF, finished, make_session, run

LOOKUP = SpeculationSettings(
    predictor=PredictorName.LOOKUP, controller=ControllerName.FIXED, n_draft=4,
    lookup_pattern_min=1,
)  # fmt: skip
DRAFT = replace(LOOKUP, predictor=PredictorName.DRAFT, draft_min_confidence=0.0)
WARM = SamplingSettings(temperature=0.8, top_k=40)
SCHEMA = Grammar(
    json.dumps(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 6},
                "tags": {"type": "array", "items": {"enum": ["red", "grey"]}, "maxItems": 3},
                "size": {"type": "integer", "minimum": 0, "maximum": 99},
            },
            "required": ["name", "tags", "size"],
            "additionalProperties": False,
        }
    )
)


def reply(
    speculation: SpeculationSettings, wanted: GenerationRequest
) -> tuple[Finished, list[Event]]:
    is_drafting = speculation.predictor is PredictorName.DRAFT
    draft = FakeBackend(sharpness=2.0, noise=0.3, seed=1) if is_drafting else None
    session = make_session(speculation, target=FakeBackend(sharpness=2.0, seed=1), draft=draft)
    events = run(session, wanted)
    return finished(events), events


def request(**changes: object) -> GenerationRequest:
    base = GenerationRequest(
        messages=(Message("user", "give me json"),), max_tokens=200, seed=3, grammar=SCHEMA
    )
    return replace(base, **changes)  # type: ignore[arg-type]  # fields by name


@pytest.mark.parametrize("sampling", [SamplingSettings(), WARM])
def test_the_text_fits_and_is_the_same_with_any_predictor(sampling: SamplingSettings) -> None:
    for seed in range(3):
        wanted = request(sampling=sampling, seed=seed)
        plain, _ = reply(OFF, wanted)
        assert plain.reason is FinishReason.END
        assert plain.fits_grammar is True
        value = json.loads(plain.text)
        assert set(value) == {"name", "tags", "size"}
        assert plain.stats.n_drafted == 0
        for settings, controller in product((LOOKUP, DRAFT), ControllerName):
            other, _ = reply(replace(settings, controller=controller), wanted)
            assert other.token_ids == plain.token_ids


def test_drafts_that_are_rejected_leave_a_text_that_fits() -> None:
    settings = replace(DRAFT, verification="rejection")
    for seed in range(3):
        fits, _ = reply(settings, request(sampling=WARM, seed=seed))
        assert set(json.loads(fits.text)) == {"name", "tags", "size"}


def test_forced_text_is_drafted_without_a_model_and_accepted() -> None:
    plain, _ = reply(OFF, request())
    drafted, _ = reply(LOOKUP, request())
    counts = drafted.stats.by_source["grammar"]
    assert counts.n_accepted == counts.n_verified > 10
    assert drafted.stats.n_rounds <= plain.stats.n_rounds - counts.n_accepted


def test_no_token_is_verified_that_the_grammar_forbids() -> None:
    # The prompt repeats what the grammar never allows, which a look-up would draft.
    text = '{"name":"x"}' * 8
    backend = FakeBackend(sharpness=2.0, seed=1)
    verified: list[tuple[list[int], list[int]]] = []
    sequence = backend.open()
    backend.open = lambda: sequence  # type: ignore[method-assign]  # to look into it
    verify = sequence.verify

    def spied(tokens: Sequence[int], *, unread: Sequence[int] = ()) -> Forward:
        verified.append(([*sequence.tokens, *unread, tokens[0]], list(tokens[1:])))
        return verify(tokens, unread=unread)

    sequence.verify = spied  # type: ignore[method-assign]
    session = make_session(replace(LOOKUP, n_draft=16), target=backend)
    end = finished(run(session, request(messages=(Message("user", text),))))
    assert json.loads(end.text)
    mask = Grammars(backend.vocabulary).mask(SCHEMA, n_before=end.stats.n_prompt)
    n_drafted = 0
    for line, draft in verified[1:]:
        for index, token in enumerate(draft):
            assert mask.allows([*line, *draft[:index]], token)
            n_drafted += 1
    assert end.stats.by_source["lookup"].n_verified > 0
    assert n_drafted == end.stats.n_verified


@pytest.mark.parametrize("max_tokens", [0, 1, 5])
def test_a_truncated_reply_is_reported_as_not_fitting(max_tokens: int) -> None:
    cut, _ = reply(LOOKUP, request(max_tokens=max_tokens))
    assert cut.reason is FinishReason.LENGTH
    assert cut.fits_grammar is False


def test_a_reply_without_a_grammar_has_no_verdict_on_one() -> None:
    assert reply(OFF, request(grammar=None, max_tokens=5))[0].fits_grammar is None


def test_a_cut_reply_goes_on_under_its_grammar() -> None:
    whole, _ = reply(OFF, request())
    cut, _ = reply(OFF, request(max_tokens=9))
    rest, _ = reply(LOOKUP, request(continues=cut.token_ids))
    assert rest.token_ids == whole.token_ids
    with pytest.raises(GrammarError, match="not match"):
        reply(OFF, request(continues=tuple(b"no json")))


def test_a_stop_token_ends_the_reply_and_is_no_part_of_it() -> None:
    free = request(grammar=None, max_tokens=30)
    whole, _ = reply(OFF, free)
    stop = whole.token_ids[7]
    first = whole.token_ids.index(stop)
    sampling = SamplingSettings(stop_tokens=(stop,))
    for speculation in (OFF, LOOKUP, DRAFT):
        ended, _ = reply(speculation, replace(free, sampling=sampling))
        assert ended.reason is FinishReason.STOP_TOKEN
        assert ended.token_ids == whole.token_ids[:first]
    with pytest.raises(TokenError, match="9999"):
        reply(OFF, replace(free, sampling=SamplingSettings(stop_tokens=(9999,))))


def test_a_system_prompt_that_was_read_before_is_not_read_again() -> None:
    system = (Message("system", "be brief and write only what is asked"),)
    session = make_session(target=FakeBackend(sharpness=2.0, seed=1))
    read = finished(list(session.preload(system, Cancellation())))
    assert (read.text, read.token_ids, read.reason) == ("", (), FinishReason.LENGTH)
    assert read.n_used >= len(system[0].content)
    asked = request(messages=(*system, Message("user", "hello")), grammar=None, max_tokens=8)
    end = finished(run(session, asked))
    assert end.stats.n_reused == read.n_used
    assert end.token_ids == reply(OFF, asked)[0].token_ids


def test_a_prompt_of_token_ids_is_taken_as_it_is() -> None:
    ids = (256, *b"give me json")
    by_ids, _ = reply(OFF, request(messages=(), grammar=None, prompt_tokens=ids, max_tokens=12))
    by_text, _ = reply(
        OFF, request(messages=(), grammar=None, raw_prompt="give me json", max_tokens=12)
    )
    assert by_ids.token_ids == by_text.token_ids
    assert by_ids.stats.n_prompt == len(ids)
    with pytest.raises(TokenError, match="261"):
        reply(OFF, request(messages=(), prompt_tokens=(1, 261)))


def test_a_context_that_ends_before_the_grammar_does_not_fit_it() -> None:
    session = make_session(OFF, target=FakeBackend(n_ctx=40, seed=1))
    *_, finished = session.generate(request(), Cancellation())
    assert isinstance(finished, Finished)
    assert (finished.reason, finished.fits_grammar) == (FinishReason.CONTEXT, False)
