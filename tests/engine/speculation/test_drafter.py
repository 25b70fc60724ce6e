"""Sources and controller, joined: who is asked, in which order, and what comes of it."""

from collections.abc import Iterator, Sequence

import pytest

from engine.configuration import ControllerName, SpeculationSettings
from engine.errors import PredictorError, PresetError
from engine.speculation.acceptance import Examined
from engine.speculation.auto import AutoController
from engine.speculation.controller import FixedController
from engine.speculation.drafter import Drafter, Examiner, make_controller
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


def test_the_first_source_with_a_guess_drafts() -> None:
    first, second, third = Saying("first"), Saying("second", 7), Saying("third", 8)
    assert drafting(first, second, third).draft(8).source == "second"
    assert (first.n_asked, third.n_asked) == (1, 0)


def test_where_all_are_silent_nobody_drafted() -> None:
    draft = drafting(Saying("first"), Saying("second")).draft(8)
    assert (draft.tokens, draft.source, draft.n_drafted) == ((), None, 0)


def test_a_source_is_pulled_one_token_at_a_time() -> None:
    source = Saying("source", *range(9))
    drafting(source).draft(8)
    assert source.n_pulled == 2


def test_every_source_follows_the_line() -> None:
    sources = [Saying("a"), Saying("b"), Saying("model")]
    plain_round(drafting(*sources))
    assert [source.line for source in sources] == [[1, 2, 5]] * 3


def test_a_source_that_fails_ends_drafting_with_the_reason() -> None:
    other = Saying("other", 7)
    drafter = drafting(Saying("broken", fails=True), other)
    assert drafter.draft(8).tokens == ()
    assert drafter.fault == "the suffix predictor failed and is off: it broke"
    assert not drafter.is_on
    assert drafter.draft(8).tokens == ()
    assert other.n_asked == 0


def test_only_sources_with_leave_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixedController, "wants", lambda _, name: name == "second")
    first, second = Saying("first", 1), Saying("second", 2)
    assert drafting(first, second).draft(8).source == "second"
    assert first.n_asked == 0


def test_each_source_is_asked_for_leave_once_and_none_behind_a_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []
    monkeypatch.setattr(FixedController, "wants", lambda _, name: not names.append(name))
    first, second = Saying("a", 1), Saying("model", 2)
    drafter = drafting(first, Saying("b"), second)
    drafter.draft(8)
    assert names == ["a"]
    first.tokens = ()
    drafter.draft(8)
    assert names == ["a", "a", "b", "model"]


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


def test_a_rule_of_one_length_affords_every_catch_up_and_the_automatic_one_does_not() -> None:
    assert make_controller(FIXED, AutoController()).affords_catch_up(1_000_000)
    assert not make_controller(AUTO, AutoController()).affords_catch_up(1_000_000)


def test_what_a_silent_source_took_is_learned_as_silence() -> None:
    known = AutoController()
    drafter = drafting(Saying("asking"), settings=AUTO, auto=known)
    known.costs.add(1, 0.01)
    plain_round(drafter)
    for _ in range(3):
        assert drafter.draft(8).tokens == ()
        drafter.observe(a_round(0, 0, 0, 1, draft_s=0.002, verify_s=0.01), [5])
    assert known.costs.drafts["asking"].silence == pytest.approx(0.2)
    assert known.costs.drafts["asking"].step is None


def test_the_automatic_rule_turns_to_the_source_that_is_asked() -> None:
    known = AutoController()
    drafter = drafting(Saying("a"), Saying("b", 1, 1, 1), settings=AUTO, auto=known)
    known.costs.add(1, 0.01)
    plain_round(drafter)
    draft = drafter.draft(8)
    outcome = a_round(len(draft.tokens), 1, 0, 1, draft.n_drafted, draft_s=0.003, verify_s=0.02)
    drafter.observe(outcome, [9])
    assert known.costs.drafts["b"].step is not None
    assert known.costs.drafts["a"].step is None
    assert known.acceptance.counts_of("b") == (0, 1)


def guesses(*tokens: int) -> list[DraftToken]:
    return [DraftToken(token, 0.5) for token in tokens]


def test_guesses_are_examined_up_to_the_first_wrong_one() -> None:
    examiner = Examiner()
    examiner.follow("s", guesses(1, 2, 3), is_verified=True)
    assert examiner.examine([1, 9]) == (Examined("s", 0.5, True), Examined("s", 0.5, False))
    assert examiner.examine([3]) == ()


def test_guesses_that_nobody_verified_are_examined_as_the_line_goes_on() -> None:
    examiner = Examiner()
    examiner.follow("s", guesses(1, 2, 3), is_verified=False)
    assert examiner.examine([1]) == (Examined("s", 0.5, True),)
    examiner.follow("s", guesses(7, 8), is_verified=False)
    assert examiner.examine([2]) == (Examined("s", 0.5, True),)


def test_a_verified_draft_takes_the_place_of_an_older_one() -> None:
    examiner = Examiner()
    examiner.follow("s", guesses(1, 2, 3), is_verified=False)
    examiner.follow("s", guesses(5), is_verified=True)
    assert examiner.examine([5]) == (Examined("s", 0.5, True),)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (SpeculationSettings(controller=ControllerName.FIXED, n_draft=0), "n_draft is 0"),
        (SpeculationSettings(n_draft_max=99), "n_draft_max is 99"),
        (SpeculationSettings(suffix_min_confidence=1.5), r"suffix_min_confidence is 1\.5"),
        (SpeculationSettings(draft_min_confidence=-0.1), r"draft_min_confidence is -0\.1"),
    ],
)
def test_values_outside_their_limits_are_refused(settings: SpeculationSettings, told: str) -> None:
    with pytest.raises(PresetError, match=told):
        make_controller(settings, AutoController())


def test_the_automatic_rule_goes_on_with_what_the_session_knows() -> None:
    known = AutoController()
    settings = SpeculationSettings(controller=ControllerName.AUTO)
    known.acceptance.add((Examined("lookup", 0.5, True),))
    assert make_controller(settings, known) is known
    assert known.acceptance.counts_of("lookup") == (1, 1)
