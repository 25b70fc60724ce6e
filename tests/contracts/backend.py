"""What every backend and its sequence must do."""

from collections.abc import Sequence as Tokens

import numpy as np
import pytest

from engine.backends.base import Backend, Sequence, common_prefix, rewind
from engine.errors import ContextFullError, DecodeAborted


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
        kept = rewind(sequence, other)
        assert kept == common_prefix(line[:20], other)
        assert list(sequence.tokens) == other[:kept]

    def test_more_rows_than_reserved_are_refused_and_nothing_is_decoded(
        self, backend: Backend, line: list[int]
    ) -> None:
        sequence = backend.open()
        rows = (line * backend.n_rows)[: backend.n_rows + 1]
        with pytest.raises(ContextFullError):
            sequence.verify(rows)
        assert list(sequence.tokens) == []

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

    def test_pieces_spell_the_tokenised_text(self, backend: Backend) -> None:
        vocabulary = backend.vocabulary
        text = "Grüße, 世界! 3 < 4\n"
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=False)
        spelled = b"".join(vocabulary.piece(token) for token in tokens).decode()
        assert spelled.strip() == text.strip()
