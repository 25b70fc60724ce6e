"""Sources and controller, joined: who is asked, in which order, and what comes of it."""

from collections.abc import Iterator, Sequence

import pytest

from engine.configuration import ControllerName, SpeculationSettings
from engine.errors import PredictorError, PresetError
from engine.speculation.auto import AutoController
from engine.speculation.drafter import Drafter, make_controller
from engine.speculation.predictors.base import DraftToken
from tests.support.rounds import a_round

AUTO = SpeculationSettings(controller=ControllerName.AUTO)
FIXED = SpeculationSettings(controller=ControllerName.FIXED, n_draft=2)


class Saying:
    """Says the same tokens whatever the line is, and counts how often it is asked."""

    def __init__(self, name: str, *tokens: int, fails: bool = False) -> None:
        self.name = name
        self.tokens = tokens
        self.line: list[int] = []
        self.n_asked = self.n_pulled = 0
        self._fails = fails

    def reset(self, history: Sequence[int]) -> None:
        self.line = list(history)

    def commit(self, tokens: Sequence[int]) -> None:
        self.line += tokens

    def propose(self) -> Iterator[DraftToken]:
        self.n_asked += 1
        if self._fails:
            raise PredictorError("it broke")
        for token in self.tokens:
            self.n_pulled += 1
            yield DraftToken(token, 0.8)

    def close(self) -> None:
        pass


def drafting(
    *sources: Saying,
    settings: SpeculationSettings = FIXED,
    auto: AutoController | None = None,
    n_plain_steps: int = 0,
) -> Drafter:
    controller = make_controller(settings, auto or AutoController())
    drafter = Drafter(sources, controller, settings)
    drafter.reset([1, 2], n_plain_steps=n_plain_steps)
    return drafter


def plain_round(drafter: Drafter) -> None:
    drafter.observe(a_round(0, 0, 0, 1, verify_s=0.01), [5])


def test_nobody_is_asked_without_leave_of_the_controller() -> None:
    source, auto = Saying("source", 1, 1), AutoController()
    drafter = drafting(source, settings=AUTO, auto=auto)
    assert drafter.draft(8).tokens == ()
    assert source.n_asked == 0
    auto.costs.add(1, 0.01)
    plain_round(drafter)
    drafter.draft(8)
    assert source.n_asked == 1


def test_a_draft_model_is_asked_only_where_the_readers_are_silent() -> None:
    reader, model = Saying("reader", 1), Saying("model", 10, 11, 12)
    drafter = drafting(reader, model)
    assert (drafter.draft(8).source, model.n_asked) == ("reader", 0)
    reader.tokens = ()
    draft = drafter.draft(8)
    assert (draft.source, draft.tokens, draft.n_drafted) == ("model", (10, 11), 2)


def test_a_source_is_pulled_one_token_at_a_time() -> None:
    source = Saying("source", *range(9))
    drafting(source).draft(8)
    assert source.n_pulled == 2


@pytest.mark.parametrize(("n_known", "n_forced"), [(0, 3), (1, 2), (3, 0)])
def test_a_rule_of_one_length_takes_plain_steps_until_their_spread_is_known(
    n_known: int, n_forced: int
) -> None:
    drafter = drafting(Saying("source", 1, 1), n_plain_steps=n_known)
    lengths = []
    for _ in range(12):
        n_verified = len(drafter.draft(8).tokens)
        lengths.append(n_verified)
        drafter.observe(a_round(n_verified, 0, 0, 1, verify_s=0.01), [5])
    assert lengths[:4] == [2] * 4
    assert lengths[4 : 4 + n_forced] == [0] * n_forced
    assert lengths[4 + n_forced :] == [2] * (8 - n_forced)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (SpeculationSettings(controller=ControllerName.FIXED, n_draft=0), "n_draft"),
        (SpeculationSettings(n_draft_max=99), "n_draft_max"),
        (SpeculationSettings(suffix_min_confidence=1.5), "suffix_min_confidence"),
        (SpeculationSettings(draft_min_confidence=-0.1), "draft_min_confidence"),
    ],
)
def test_values_outside_their_limits_are_refused(settings: SpeculationSettings, name: str) -> None:
    with pytest.raises(PresetError, match=name):
        make_controller(settings, AutoController())
