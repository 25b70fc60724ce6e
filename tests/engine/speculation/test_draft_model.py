from collections.abc import Sequence
from itertools import islice

import pytest

from engine.backends.base import Logits
from engine.configuration import SamplingSettings, SpeculationSettings, Verification
from engine.errors import IncompatiblePairError
from engine.sampling import Sampler
from engine.speculation.pairs import check_pair
from engine.speculation.predictors.base import Predictor
from engine.speculation.predictors.draft_model import MAX_MISSED, DraftModelPredictor, probability
from engine.testing import FakeBackend, FakeSequence, FakeVocabulary
from tests.contracts.predictor import PredictorContract


def make(
    backend: FakeBackend,
    sequence: FakeSequence,
    *,
    confidence: float = 0.0,
    least: int = 0,
    sampler: Sampler | None = None,
    verification: Verification = "coupled",
) -> DraftModelPredictor:
    return DraftModelPredictor(
        sequence,
        sampler or Sampler(SamplingSettings(), seed=1),
        SpeculationSettings(
            draft_min_tokens=least, draft_min_confidence=confidence, verification=verification
        ),
        n_ctx=backend.n_ctx,
        n_batch=backend.n_batch,
        n_vocab=backend.vocabulary.n_tokens,
    )


class TestDraftModel(PredictorContract):
    @pytest.fixture
    def predictor(self) -> Predictor:
        backend = FakeBackend(order=100)
        return make(backend, backend.open())

    @pytest.fixture
    def line(self) -> list[int]:
        return list(range(40))


def greedy(backend: FakeBackend, line: list[int], n: int) -> list[int]:
    line = list(line)
    for _ in range(n):
        line.append(int(backend.logits_after(line).argmax()))
    return line[-n:]


def test_it_proposes_the_draft_model_s_own_continuation() -> None:
    backend = FakeBackend()
    predictor = make(backend, backend.open())
    predictor.reset([1, 2, 3])
    assert [g.token for g in islice(predictor.propose(), 5)] == greedy(backend, [1, 2, 3], 5)


def test_it_decodes_each_committed_token_once() -> None:
    backend = FakeBackend()
    predictor = make(backend, backend.open())
    line = list(range(30))
    predictor.reset(line)
    drafted = [g.token for g in islice(predictor.propose(), 4)]
    assert backend.n_decoded == len(line) + 3
    predictor.commit([*drafted, 17])
    backend.n_decoded = 0
    list(islice(predictor.propose(), 1))
    assert backend.n_decoded == 2, "the last drafted token and the bonus"


def test_it_stops_before_a_token_it_does_not_trust() -> None:
    backend = FakeBackend(sharpness=0.1)
    predictor = make(backend, backend.open(), confidence=0.6)
    predictor.reset([1, 2, 3])
    assert list(islice(predictor.propose(), 4)) == []
    predictor = make(backend, backend.open(), confidence=0.6, least=2)
    predictor.reset([1, 2, 3])
    assert len(list(islice(predictor.propose(), 4))) == 2


def test_with_rejection_it_stops_by_the_distribution_and_not_by_the_draw() -> None:
    backend = FakeBackend(sharpness=1.0)
    row = backend.logits_after([1, 2, 3])
    best = probability(row, int(row.argmax()))
    drawn: set[int] = set()
    for seed in range(20):
        sampler = Sampler(SamplingSettings(temperature=2.0), seed)
        for trust, n_drafted in ((0.99 * best, 1), (1.01 * best, 0)):
            predictor = make(
                backend,
                backend.open(),
                confidence=trust,
                sampler=sampler,
                verification="rejection",
            )
            predictor.reset([1, 2, 3])
            guesses = list(islice(predictor.propose(), 1))
            assert len(guesses) == n_drafted
            for guess in guesses:
                assert guess.distribution is not None
                assert guess.confidence == best
                drawn.add(guess.token)
    assert len(drawn) > 10


def test_a_line_longer_than_its_context_is_read_from_the_middle_on() -> None:
    backend = FakeBackend(n_ctx=64)
    sequence = backend.open()
    predictor = make(backend, sequence)
    line = [n % 250 for n in range(100)]
    predictor.reset(line)
    assert [g.token for g in islice(predictor.propose(), 3)] == greedy(backend, line, 3)
    assert len(sequence.tokens) <= 64
    before = backend.n_decoded
    for _ in range(8):
        line.append(7)
        predictor.commit([7])
        list(islice(predictor.propose(), 1))
    assert backend.n_decoded - before <= 8 + 2


def test_after_a_pause_it_skips_all_but_the_last_tokens() -> None:
    backend = FakeBackend()
    predictor = make(backend, backend.open())
    line = [n % 250 for n in range(100)]
    predictor.reset(line)
    list(islice(predictor.propose(), 1))
    before = backend.n_decoded
    missed = [n % 240 for n in range(300)]
    for start in range(0, 300, 3):
        predictor.commit(missed[start : start + 3])
    drafted = [each.token for each in islice(predictor.propose(), 2)]
    assert drafted == greedy(backend, [*line, *missed], 2)
    assert backend.n_decoded - before <= MAX_MISSED + 2


class NoBos(FakeVocabulary):
    adds_bos = False


def test_a_vocabulary_with_one_other_token_is_refused_and_the_token_named() -> None:
    check_pair(FakeVocabulary(), FakeVocabulary())
    for target, draft, message in (
        (FakeVocabulary(26, ord("a")), FakeVocabulary(26, ord("b")), "token 5 "),
        (NoBos(20), NoBos(250), "25 .* 255"),
        (FakeVocabulary(20), FakeVocabulary(22), "bos_token_id"),
    ):
        with pytest.raises(IncompatiblePairError, match=message):
            check_pair(target, draft)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_of_a_line_with_tokens_that_its_vocabulary_lacks_it_reads_the_tokens_after(
    penalty: float,
) -> None:
    class Strict(FakeBackend):
        """As llama_decode, it refuses what it has no entry for."""

        def logits_after(self, tokens: Sequence[int]) -> Logits:
            assert max(tokens) < self.vocabulary.n_tokens
            return super().logits_after(tokens)

    backend = Strict(order=100)
    foreign = backend.vocabulary.n_tokens + 3
    sampler = Sampler(SamplingSettings(repetition_penalty=penalty), seed=1)
    predictor = make(backend, backend.open(), sampler=sampler)
    predictor.reset([1, foreign, 2, 3])
    proposed = [g.token for g in islice(predictor.propose(), 5)]
    assert len(proposed) == 5
    if penalty == 1.0:
        assert proposed == greedy(backend, [2, 3], 5)
    predictor.commit([proposed[0], foreign])
    assert list(predictor.propose()) == []
    predictor.commit([4])
    assert len(list(islice(predictor.propose(), 3))) == 3
