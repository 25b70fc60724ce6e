"""What every predictor must do."""

from itertools import islice

from engine.speculation.predictors.base import DraftToken, Predictor


class PredictorContract:
    """Subclasses give fixtures `predictor` and `line`, a line that the predictor can continue."""

    def test_it_has_a_name(self, predictor: Predictor) -> None:
        assert predictor.name

    def test_nothing_is_proposed_after_an_empty_sequence(self, predictor: Predictor) -> None:
        predictor.reset(())
        assert list(islice(predictor.propose(), 3)) == []

    def test_proposals_are_tokens_with_a_confidence(
        self, predictor: Predictor, line: list[int]
    ) -> None:
        predictor.reset(line)
        proposals = list(islice(predictor.propose(), 4))
        assert proposals
        assert all(isinstance(guess, DraftToken) for guess in proposals)
        assert all(0.0 <= guess.confidence <= 1.0 for guess in proposals)

    def test_proposing_twice_proposes_the_same(self, predictor: Predictor, line: list[int]) -> None:
        predictor.reset(line)
        first = list(islice(predictor.propose(), 4))
        assert list(islice(predictor.propose(), 4)) == first

    def test_committing_is_the_same_as_resetting_to_the_longer_line(
        self, predictor: Predictor, line: list[int]
    ) -> None:
        predictor.reset(line[:-3])
        list(islice(predictor.propose(), 2))
        predictor.commit(line[-3:])
        committed = list(islice(predictor.propose(), 4))
        predictor.reset(line)
        assert list(islice(predictor.propose(), 4)) == committed

    def test_a_wrong_guess_leaves_no_trace(self, predictor: Predictor, line: list[int]) -> None:
        predictor.reset(line)
        guesses = [guess.token for guess in islice(predictor.propose(), 4)]
        other = (guesses[0] + 1) % 40
        predictor.commit([other, *line[:6]])
        after = list(islice(predictor.propose(), 4))
        predictor.reset([*line, other, *line[:6]])
        assert list(islice(predictor.propose(), 4)) == after
