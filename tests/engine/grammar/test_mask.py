"""Masks of a sequence that grows and is cropped are those of a new one."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.mask import GrammarMask, Grammars
from engine.grammar.source import GrammarError
from engine.requests import GenerationRequest, Grammar
from engine.testing import FakeVocabulary

BYTES = FakeVocabulary()
END = BYTES.eos
COLOURS = Grammar('root ::= "the " ("red" | "green" | "grey") " one" "s"?', is_schema=False)
PERSON = Grammar(
    json.dumps(
        {
            "type": "object",
            "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            "required": ["name", "age"],
            "additionalProperties": False,
        }
    )
)
GRAMMARS = Grammars(BYTES)
PROMPT = [BYTES.bos, *b"hello"]


def fresh(grammar: Grammar = COLOURS) -> GrammarMask:
    return GRAMMARS.mask(grammar, n_before=len(PROMPT))


def after(text: str) -> list[int]:
    return [*PROMPT, *text.encode()]


def allowed(mask: GrammarMask, text: str) -> str:
    tokens = np.flatnonzero(mask(after(text)))
    return "".join("$" if token == END else chr(token) for token in tokens)


@pytest.mark.parametrize(
    ("text", "following"),
    [("", "t"), ("the ", "gr"), ("the gre", "ey"), ("the red one", "s$"), ("the red ones", "$")],
)
def test_only_tokens_of_the_grammar_may_follow(text: str, following: str) -> None:
    assert allowed(fresh(), text) == following


def test_a_mask_has_an_entry_for_every_token_and_control_tokens_are_no_text() -> None:
    anything = Grammar("start: /(.|\\n)*/", is_schema=False)
    mask = fresh(anything)(after(""))
    assert mask.shape == (BYTES.n_tokens,)
    assert mask[:128].all()
    controls = np.flatnonzero(mask[BYTES.n_plain :]) + BYTES.n_plain
    assert controls.tolist() == [END]


def test_after_the_end_only_an_end_token_may_follow() -> None:
    mask = fresh()
    ended = [*after("the red one"), END]
    assert np.flatnonzero(mask(ended)).tolist() == [END]
    assert np.flatnonzero(mask([*ended, END])).tolist() == [END]
    assert mask.forced_tokens(ended) == []
    assert mask.allows(ended, END)
    assert not mask.allows(ended, ord("s"))
    assert allowed(mask, "the red one") == "s$"


LINES = st.sampled_from(
    [text[:n] for text in ("the red ones", "the green one", "the grey ones") for n in range(14)]
)


@given(st.lists(LINES, min_size=1, max_size=12))
@settings(max_examples=60)
def test_the_order_of_questions_does_not_matter(lines: list[str]) -> None:
    asked = fresh()
    for line in lines:
        assert (asked(after(line)) == fresh()(after(line))).all()
        assert asked.is_satisfied(after(line)) is line.endswith(("one", "ones"))
        assert asked.allows(after(line), ord("e")) is bool(fresh()(after(line))[ord("e")])


def test_forced_text_is_drafted_and_a_choice_is_not() -> None:
    mask = fresh(PERSON)
    assert bytes(mask.forced_tokens(after('{"n'))).startswith(b'ame"')
    assert fresh().forced_tokens(after("the ")) == []
    assert bytes(fresh().forced_tokens(after("the r"))) == b"ed one"


def test_a_reply_that_does_not_fit_is_an_error_with_the_place() -> None:
    with pytest.raises(GrammarError, match="from token 5 on"):
        fresh()(after("the blue"))
    continued = GenerationRequest(grammar=COLOURS, continues=tuple(b"the blue"))
    with pytest.raises(GrammarError, match="does not match"):
        GRAMMARS.mask_of(continued, after("the blue"))
    going_on = GenerationRequest(grammar=COLOURS, continues=tuple(b"the gre"))
    mask = GRAMMARS.mask_of(going_on, after("the gre"))
    assert mask is not None
    assert allowed(mask, "the gre") == "ey"


def test_a_vocabulary_without_an_end_is_refused() -> None:
    endless = FakeVocabulary()
    endless.is_end = lambda token: False  # type: ignore[method-assign]  # a base model's habit
    with pytest.raises(GrammarError, match="no end token"):
        Grammars(endless).mask(COLOURS, n_before=0)
