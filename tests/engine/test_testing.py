"""The doubles that the wheel brings do what those do that they stand for."""

from dataclasses import replace

from engine.configuration import ControllerName, SpeculationSettings
from engine.generation.callbacks import CallbackDecoder
from engine.requests import GenerationRequest
from engine.testing import FakeBackend, draft_function, target_function
from tests.support.sessions import DRAFT, LETTERS, finished, make_session, run

FIXED = SpeculationSettings(controller=ControllerName.FIXED, n_draft=3)


def test_the_doubles_functions_decode_as_a_session_of_the_doubles_does() -> None:
    target = FakeBackend(LETTERS, sharpness=2.0)
    draft = FakeBackend(LETTERS, sharpness=2.0, noise=0.3)
    made = CallbackDecoder(
        draft_function(draft),
        target_function(target),
        n_vocab=LETTERS.n_tokens,
        is_end=LETTERS.is_end,
        settings=FIXED,
    )
    asked = GenerationRequest(raw_prompt="abcabc", max_tokens=60, seed=7)
    settings = replace(DRAFT, n_draft=3)
    end = finished(run(make_session(settings, target=target, draft=draft), asked))
    prompt = LETTERS.tokenize("abcabc", add_special=True, parse_special=True)
    assert made.decode(prompt, max_tokens=60) == end.token_ids
    assert (
        made.metrics.total("verified_tokens_total")
        > made.metrics.total("accepted_tokens_total")
        > 0
    )
