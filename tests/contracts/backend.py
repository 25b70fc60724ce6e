"""What every backend and its sequence must do."""

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Backend, Sequence, Step, common_prefix, rewind
from engine.errors import ContextFullError, DecodeAborted, StateError


class BackendContract:
    """Subclasses give fixtures `backend` and `line` (at least 40 tokens) and a tolerance."""

    tolerance = 0.0

    def prefill_all(self, backend: Backend, sequence: Sequence, tokens: Tokens[int]) -> None:
        for start in range(0, len(tokens), backend.n_batch):
            sequence.prefill(tokens[start : start + backend.n_batch])

    def test_an_opened_sequence_is_empty(self, backend: Backend) -> None:
        assert list(backend.open().tokens) == []

    def test_a_prefill_is_held(self, backend: Backend, line: list[int]) -> None:
        sequence = backend.open()
        self.prefill_all(backend, sequence, line)
        assert list(sequence.tokens) == line

    def test_verify_gives_a_row_for_each_token(self, backend: Backend, line: list[int]) -> None:
        forward = backend.open().verify(line[:5])
        assert forward.logits.shape == (5, backend.vocabulary.n_tokens)
        assert forward.logits.dtype == np.float32

    def test_verify_is_the_same_as_decoding_one_by_one(
        self, backend: Backend, line: list[int]
    ) -> None:
        n = backend.n_rows
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:10])
        together = sequence.verify(line[10 : 10 + n]).logits.copy()
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:10])
        single = np.stack([sequence.decode(t).logits[0].copy() for t in line[10 : 10 + n]])
        assert np.abs(together - single).max() <= self.tolerance

    def test_a_step_alone_in_a_batch_is_a_verify(self, backend: Backend, line: list[int]) -> None:
        sequence = backend.open()
        [read] = backend.verify_batch([Step(sequence, unread=line[:4])])
        [rows] = backend.verify_batch([Step(sequence, line[6:9], unread=line[4:6])])
        assert len(read.logits) == 0
        assert list(sequence.tokens) == line[:9]
        together = rows.logits.copy()
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:4])
        alone = sequence.verify(line[6:9], unread=line[4:6]).logits
        assert np.abs(together - alone).max() <= self.tolerance

    def test_a_batch_of_too_many_rows_is_refused_and_nothing_is_decoded(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        rows = (line * backend.n_rows)[: backend.n_rows + 1]
        with pytest.raises(ContextFullError):
            backend.verify_batch([Step(sequence, rows)])
        assert list(sequence.tokens) == []

    def test_unread_tokens_go_before_the_rows_in_one_batch(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:4])
        together = sequence.verify(line[10:12], unread=line[4:10]).logits.copy()
        assert list(sequence.tokens) == line[:12]
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:10])
        single = np.stack([sequence.decode(token).logits[0].copy() for token in line[10:12]])
        assert together.shape == single.shape
        assert np.abs(together - single).max() <= self.tolerance

    def test_a_batch_that_is_too_long_with_what_is_unread_is_refused(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        unread = (line * backend.n_batch)[: backend.n_batch]
        with pytest.raises(ContextFullError):
            sequence.verify(line[:1], unread=unread)
        assert list(sequence.tokens) == []

    def test_cropped_tokens_leave_no_trace(self, backend: Backend, line: list[int]) -> None:
        for length in (1, 7, 20, 29):
            sequence = backend.open()
            self.prefill_all(backend, sequence, line[:30])
            sequence.crop(length)
            assert list(sequence.tokens) == line[:length]
            after = sequence.decode(line[35]).logits.copy()
            sequence = backend.open()
            self.prefill_all(backend, sequence, line[:length])
            fresh = sequence.decode(line[35]).logits.copy()
            assert np.abs(after - fresh).max() <= self.tolerance

    def test_crop_to_zero_always_works(self, backend: Backend, line: list[int]) -> None:
        sequence = backend.open()
        sequence.prefill(line[:8])
        sequence.crop(0)
        assert list(sequence.tokens) == []

    def test_rewind_keeps_the_shared_prefix(self, backend: Backend, line: list[int]) -> None:
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:20])
        other = [*line[:12], line[13], *line[13:20]]
        length = rewind(sequence, other)
        assert length == common_prefix(line[:20], other)
        assert list(sequence.tokens) == other[:length]

    def test_more_rows_than_reserved_are_refused_and_nothing_is_decoded(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        rows = (line * backend.n_rows)[: backend.n_rows + 1]
        with pytest.raises(ContextFullError):
            sequence.verify(rows)
        assert list(sequence.tokens) == []

    @pytest.mark.slow
    def test_a_full_context_is_refused_and_nothing_is_decoded(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        full = (line * backend.n_ctx)[: backend.n_ctx]
        self.prefill_all(backend, sequence, full)
        with pytest.raises(ContextFullError):
            sequence.decode(line[0])
        assert len(sequence.tokens) == backend.n_ctx

    def test_an_abort_stops_the_next_decode_until_cleared(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        sequence.prefill(line[:4])
        backend.abort()
        with pytest.raises(DecodeAborted):
            sequence.prefill(line[4:8])
        assert list(sequence.tokens) == line[:4]
        backend.clear_abort()
        sequence.prefill(line[4:8])
        assert list(sequence.tokens) == line[:8]

    def test_pieces_join_to_the_tokenised_text(self, backend: Backend) -> None:
        vocabulary = backend.vocabulary
        text = "Grüße, 世界! 3 < 4\n"
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
        text_again = b"".join(vocabulary.piece(token) for token in tokens).decode()
        assert text_again.strip() == text.strip()


class BatchContract:
    """Subclasses give fixtures `backend` (three sequences) and `line` (at least 40 tokens)."""

    tolerance = 0.0
    is_apart = True
    """Whether each sequence has cells of its own."""

    @pytest.fixture
    def sequences(self, backend: Backend) -> Iterator[list[Sequence]]:
        opened = [backend.open() for _ in range(3)]
        yield opened
        for sequence in opened:
            sequence.close()

    def test_sequences_in_one_batch_have_the_rows_that_each_has_alone(
        self, backend: Backend, line: list[int], sequences: list[Sequence]
    ) -> None:
        starts = (line[:5], line[3:9], line[20:24])
        drafts = (line[8:9], line[12:15], line[30:32])
        alone = []
        for start, draft in zip(starts, drafts, strict=True):
            sequences[0].crop(0)
            sequences[0].prefill(start)
            alone.append(sequences[0].verify(draft).logits.copy())
        sequences[0].crop(0)
        backend.verify_batch(
            [Step(each, unread=start) for each, start in zip(sequences, starts, strict=True)]
        )
        steps = [Step(each, draft) for each, draft in zip(sequences, drafts, strict=True)]
        forwards = backend.verify_batch(steps)
        for sequence, start, draft in zip(sequences, starts, drafts, strict=True):
            assert list(sequence.tokens) == [*start, *draft]
        for forward, expected in zip(forwards, alone, strict=True):
            assert forward.logits.shape == expected.shape
            assert np.abs(forward.logits - expected).max() <= self.tolerance

    def test_a_prompt_is_read_beside_others_that_decode(
        self, backend: Backend, line: list[int], sequences: list[Sequence]
    ) -> None:
        reading, decoding, _ = sequences
        decoding.prefill(line[:5])
        expected = decoding.decode(line[5]).logits.copy()
        decoding.crop(5)
        read, row = backend.verify_batch(
            [Step(reading, unread=line[:12]), Step(decoding, line[5:6])]
        )
        assert len(read.logits) == 0
        assert np.abs(row.logits - expected).max() <= self.tolerance
        assert list(reading.tokens) == line[:12]

    def test_a_batch_in_any_order_gives_each_its_row_and_leaves_who_is_not_in_it(
        self, backend: Backend, line: list[int], sequences: list[Sequence]
    ) -> None:
        first, between, last = sequences
        between.prefill(line[:7])
        untouched = between.decode(line[7]).logits.copy()
        between.crop(7)
        alone = []
        for sequence, start in ((last, 3), (first, 0)):
            sequence.prefill(line[start : start + 5])
            alone.append(sequence.decode(line[start + 5]).logits.copy())
            sequence.crop(5)
        steps = [Step(last, line[8:9]), Step(first, line[5:6])]
        for forward, expected in zip(backend.verify_batch(steps), alone, strict=True):
            assert np.abs(forward.logits - expected).max() <= self.tolerance
        assert list(between.tokens) == line[:7]
        again = between.decode(line[7]).logits
        assert np.abs(again - untouched).max() <= (0 if self.is_apart else self.tolerance)

    def test_a_batch_that_exceeds_the_cells_of_one_step_decodes_none(
        self, backend: Backend, line: list[int], sequences: list[Sequence]
    ) -> None:
        full, other, _ = sequences
        for start in range(0, backend.n_ctx - 1, backend.n_batch):
            n = min(backend.n_batch, backend.n_ctx - 1 - start)
            full.prefill((line * n)[:n])
        with pytest.raises(ContextFullError):
            backend.verify_batch([Step(other, line[:1]), Step(full, line[:2])])
        assert list(other.tokens) == []
        assert len(full.tokens) == backend.n_ctx - 1

    def test_an_aborted_batch_is_decoded_by_no_sequence(
        self, backend: Backend, line: list[int], sequences: list[Sequence]
    ) -> None:
        backend.abort()
        with pytest.raises(DecodeAborted):
            backend.verify_batch([Step(each, line[:2]) for each in sequences])
        backend.clear_abort()
        assert [list(each.tokens) for each in sequences] == [[], [], []]


class StateContract:
    """Subclasses give fixtures `backend` and `line` (at least 40 tokens)."""

    def prefill_all(self, backend: Backend, sequence: Sequence, tokens: Tokens[int]) -> None:
        for start in range(0, len(tokens), backend.n_batch):
            sequence.prefill(tokens[start : start + backend.n_batch])

    def rows_after(self, sequence: Sequence, tokens: Tokens[int]) -> NDArray[np.float32]:
        return np.stack([sequence.decode(token).logits[0].copy() for token in tokens])

    def test_a_restored_state_goes_on_as_if_nothing_had_happened(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:24])
        state = sequence.save()
        expected = self.rows_after(sequence, line[24:32])
        for other in ((), line[1:9]):
            sequence.crop(0)
            self.prefill_all(backend, sequence, other)
            sequence.load(line[:24], [state])
            assert list(sequence.tokens) == line[:24]
            assert np.array_equal(self.rows_after(sequence, line[24:32]), expected)

    def segments(self, backend: Backend, tokens: Tokens[int], ends: Tokens[int]) -> list[bytes]:
        """The consecutive states of a sequence, each saved when it was computed."""
        sequence, states = backend.open(), []
        sequence.crop(0)
        for start, end in pairwise((0, *ends)):
            self.prefill_all(backend, sequence, tokens[start:end])
            states.append(bytes(sequence.save(start)))
        sequence.close()
        return states

    def test_a_state_can_be_saved_and_restored_in_segments(
        self, backend: Backend, line: list[int]
    ) -> None:
        if not backend.can_slice:
            pytest.skip("states of this model are whole")
        first, second, third = self.segments(backend, line, (17, 21, 30))
        sequence = backend.open()
        sequence.load(line[:30], [first, second, third])
        whole = bytes(sequence.save())
        assert bytes(sequence.save(21)) == third
        sequence.load(line[:21], [first, second])
        rows = self.rows_after(sequence, line[30:34])
        for states in ([first, second, third], [whole]):
            sequence.load(line[:30], states)
            assert bytes(sequence.save()) == whole
            sequence.crop(21)
            assert np.array_equal(self.rows_after(sequence, line[30:34]), rows)

    def test_states_that_do_not_hold_the_tokens_are_refused_and_nothing_is_held(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        self.prefill_all(backend, sequence, line[:24])
        state = sequence.save()
        for states in ([state[:-1]], [bytes(state) + b"\0"], [b""], [], [b"\0" * len(state)]):
            with pytest.raises(StateError):
                sequence.load(line[:24], states)
            assert list(sequence.tokens) == []
        for n in (23, 25):
            with pytest.raises(StateError):
                sequence.load(line[:n], [state])
        sequence.load(line[:24], [state])
        assert len(sequence.tokens) == 24

    def test_segments_must_follow_one_another(self, backend: Backend, line: list[int]) -> None:
        if not backend.can_slice:
            pytest.skip("states of this model are whole")
        front, back = self.segments(backend, line, (10, 24))
        sequence = backend.open()
        for states in ([back], [back, front], [front, front, back], [front]):
            with pytest.raises(StateError):
                sequence.load(line[:24], states)


class SeveralSequencesContract:
    """Subclasses give fixtures `backend` (three sequences) and `line` (at least 40 tokens)."""

    @pytest.fixture(autouse=True)
    def _all_closed(self, backend: Backend) -> Iterator[None]:
        self.opened: list[Sequence] = []
        yield
        for sequence in self.opened:
            sequence.close()

    def open(self, backend: Backend, tokens: Tokens[int] = ()) -> Sequence:
        sequence = backend.open()
        self.opened.append(sequence)
        for start in range(0, len(tokens), backend.n_batch):
            sequence.prefill(tokens[start : start + backend.n_batch])
        return sequence

    def test_at_most_n_sequences_are_open_and_a_closed_one_can_be_replaced(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequences = [self.open(backend, line[:5]) for _ in range(backend.n_sequences)]
        with pytest.raises(ContextFullError):
            backend.open()
        sequences[1].close()
        assert list(self.open(backend).tokens) == []
        assert list(sequences[2].tokens) == line[:5]

    def test_sequences_do_not_touch_each_other(self, backend: Backend, line: list[int]) -> None:
        first, second = self.open(backend, line[:9]), self.open(backend, line[3:15])
        alone = second.decode(line[20]).logits[0].copy()
        first.crop(2)
        first.decode(line[30])
        assert list(second.tokens) == [*line[3:15], line[20]]
        second.crop(12)
        assert np.abs(second.decode(line[20]).logits[0] - alone).max() < 0.6
        assert list(first.tokens) == [*line[:2], line[30]]

    def test_a_state_moves_to_another_sequence(self, backend: Backend, line: list[int]) -> None:
        first, second = self.open(backend, line[:20]), self.open(backend)
        state = second_state = first.save()
        second.load(line[:20], [state])
        second_state = second.save()
        first.crop(0)
        first.load(line[:20], [second_state])
        assert list(first.tokens) == list(second.tokens) == line[:20]
        rows = [s.decode(line[20]).logits[0].copy() for s in (first, second)]
        assert np.abs(rows[0] - rows[1]).max() < 0.6
