"""Test doubles: a tiny language model that implements the whole backend interface.

kvchat does not import this module; it is for tests of predictor and backend packages.
"""

import struct
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Tokens
from functools import lru_cache
from zlib import crc32

import numpy as np

from engine.backends.base import Backend, Forward, Logits, Sequence, Step, Vocabulary
from engine.configuration import Adapter
from engine.errors import (
    AdapterError,
    ContextFullError,
    DecodeAborted,
    StateError,
)

SPECIALS = ("<bos>", "<end>", "<user>", "<assistant>", "<system>")
STATE = struct.Struct("<4sII")
STATE_MAGIC = b"FAKE"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class FakeVocabulary(Vocabulary):
    """Tokens 0 to n_plain - 1 are bytes from `first_byte` on, followed by control tokens."""

    kind = "FAKE"
    adds_bos = True
    bos: int

    def __init__(self, n_plain: int = 256, first_byte: int = 0) -> None:
        self.n_plain = n_plain
        self.first_byte = first_byte
        self.n_tokens = n_plain + len(SPECIALS)
        self.bos = n_plain
        self.eos = n_plain + 1
        self.identifier = f"fake-{n_plain}-{first_byte}"

    def is_end(self, token: int) -> bool:
        return token == self.eos

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [self.bos] if add_special else []
        while text:
            special = next((s for s in SPECIALS if parse_special and text.startswith(s)), None)
            if special is not None:
                tokens.append(self.n_plain + SPECIALS.index(special))
                text = text[len(special) :]
            else:
                tokens += [(byte - self.first_byte) % self.n_plain for byte in text[0].encode()]
                text = text[1:]
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        assert 0 <= token < self.n_tokens
        if token >= self.n_plain:
            return SPECIALS[token - self.n_plain].encode() if special else b""
        return bytes([token + self.first_byte])


class FakeBackend(Backend):
    """Logits are a fixed function of the last `order` tokens and the seed.

    `sharpness` scales the logits. Two backends with the same seed and different noise serve as
    target and draft. Without `can_crop` it acts as a recurrent model, whose states cannot be split
    either. A state holds the decoded tokens, so tests detect one restored for other tokens.
    """

    vocabulary: FakeVocabulary

    def __init__(
        self,
        vocabulary: FakeVocabulary | None = None,
        *,
        n_ctx: int = 512,
        n_batch: int = 16,
        n_rows: int = 17,
        seed: int = 0,
        order: int = 3,
        sharpness: float = 4.0,
        noise: float = 0.0,
        can_crop: bool = True,
        end_bias: float = -6.0,
        n_sequences: int = 1,
        can_slice: bool | None = None,
        state_format: str = "fake state 1",
        n_threads: int = 1,
    ) -> None:
        self.vocabulary = vocabulary or FakeVocabulary()
        self.n_ctx, self.n_batch, self.n_rows = n_ctx, n_batch, n_rows
        self.kv_bytes = 64 * n_ctx
        self.can_crop = can_crop
        self.n_sequences = n_sequences
        self._can_slice = can_crop if can_slice is None else can_slice
        self.state_format = state_format
        self.n_threads = (n_threads, n_threads)
        self.n_threads_set = n_threads
        self.n_saved = 0
        self.n_loaded = 0
        self.opened: list[FakeSequence] = []
        self.batches: list[tuple[int, ...]] = []
        """Tokens per step of each `verify_batch`."""
        self.n_decodes = 0
        self.n_decoded = 0
        self.is_closed = False
        self.mark = 0
        """Offset that adapters add to the tokens of cells, so that tests can detect it."""
        self._seed, self._order, self._sharpness = seed, order, sharpness
        self._noise, self._end_bias = noise, end_bias
        self._row = lru_cache(maxsize=None)(self._make_row)

    @property
    def can_slice(self) -> bool:
        return self._can_slice

    def open(self) -> "FakeSequence":
        if self.n_sequences == 1:
            self.opened.clear()
        elif len(self.opened) == self.n_sequences:
            raise ContextFullError(f"all {self.n_sequences} sequences are open")
        sequence = FakeSequence(self)
        self.opened.append(sequence)
        return sequence

    def n_free(self, sequence: "FakeSequence") -> int:
        """Free cells of a sequence."""
        return self.n_ctx - len(sequence.cells)

    def set_threads(self, n_threads: int) -> None:
        self.n_threads_set = n_threads

    def verify_batch(self, steps: Tokens[Step]) -> list[Forward]:
        if sum(len(step.tokens) for step in steps) > self.n_rows:
            raise ContextFullError(f"a batch has more than {self.n_rows} rows of logits")
        if sum(step.n_tokens for step in steps) > max(self.n_batch, self.n_rows):
            raise ContextFullError(f"a batch has more than {self.n_batch} tokens")
        for step in steps:
            if step.n_tokens > self.n_ctx - len(step.sequence.tokens):
                raise ContextFullError(f"{step.n_tokens} tokens exceed the free cells")
        self.batches.append(tuple(step.n_tokens for step in steps))
        return super().verify_batch(steps)

    def use_adapters(self, adapters: Tokens[Adapter] | None) -> None:
        used = () if adapters is None else tuple(adapters)
        wrong = next((each.path for each in used if each.path.suffix != ".gguf"), None)
        if wrong is not None:
            raise AdapterError(f"{wrong.name} is not an adapter of this model")
        self.mark = crc32(repr(used).encode()) % 10**6 * 1000 if used else 0

    def close(self) -> None:
        self.is_closed = True

    def logits_after(self, tokens: Tokens[int]) -> Logits:
        """Logits after a sequence: `[n_vocab]` float32."""
        return self._row(tuple(tokens[-self._order :]))

    def _make_row(self, context: tuple[int, ...]) -> Logits:
        words = [self._seed, *(token + 1 for token in context)]
        row = np.random.default_rng(words).normal(size=self.vocabulary.n_tokens)
        if self._noise:
            row += self._noise * np.random.default_rng([7, *words]).normal(size=row.size)
        row *= self._sharpness
        row[self.vocabulary.n_plain :] = -30.0
        row[self.vocabulary.eos] = self._end_bias
        return row.astype(np.float32)


class FakeCell:
    """A cell with its decoded token."""

    def __init__(self, token: int) -> None:
        self.token = token


def fake_state(start: int, tokens: Tokens[int]) -> bytes:
    """State of the tokens from position `start` on, as saved by a `FakeSequence`."""
    return STATE.pack(STATE_MAGIC, start, len(tokens)) + struct.pack(f"<{len(tokens)}i", *tokens)


def read_fake_state(state: bytes | memoryview) -> tuple[int, list[int]]:
    """Parse a state to its start position and its tokens.

    Raises:
        StateError: it is truncated or damaged.
    """
    if len(state) < STATE.size:
        raise StateError("the saved state is truncated")
    magic, start, n = STATE.unpack_from(state)
    if magic != STATE_MAGIC or len(state) != STATE.size + 4 * n:
        raise StateError("the saved state is damaged")
    return start, list(struct.unpack_from(f"<{n}i", state, STATE.size))


class FakeSequence(Sequence):
    """A sequence of a `FakeBackend`; its cells have the tokens that were really decoded."""

    _backend: FakeBackend

    def __init__(self, backend: FakeBackend) -> None:
        super().__init__(backend)
        self.cells: list[FakeCell] = []
        """Decoded tokens; `tokens` has those that the caller passed."""

    def prefill(self, tokens: Tokens[int]) -> None:
        if len(tokens) > self._backend.n_batch:
            raise ContextFullError(f"a batch has more than {self._backend.n_batch} tokens")
        self._decode(tokens)

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        if len(tokens) > self._backend.n_rows:
            raise ContextFullError(f"a batch has more than {self._backend.n_rows} rows of logits")
        if unread and len(unread) + len(tokens) > self._backend.n_batch:
            raise ContextFullError(f"a batch has more than {self._backend.n_batch} tokens")
        start = len(self._tokens) + len(unread)
        self._decode((*unread, *tokens))
        held = [cell.token for cell in self.cells]
        rows = [self._backend.logits_after(held[: start + n + 1]) for n in range(len(tokens))]
        return Forward(np.stack(rows))

    def can_crop(self, length: int) -> bool:
        if length in (0, len(self._tokens)):
            return True
        return self._backend.can_crop and super().can_crop(length)

    def crop(self, length: int) -> None:
        super().crop(length)
        del self.cells[length:]

    def save(self, start: int = 0) -> bytes | memoryview:
        if not 0 <= start < len(self.cells):
            raise StateError(f"the cache has {len(self.cells)} tokens, none after {start}")
        if start and not self._backend.can_slice:
            raise StateError("states of this model cannot be saved in parts")
        self._backend.n_saved += 1
        return fake_state(start, [cell.token for cell in self.cells[start:]])

    def load(self, tokens: Tokens[int], states: Tokens[bytes | memoryview]) -> None:
        self.crop(0)
        if len(tokens) > self._backend.n_free(self):
            raise ContextFullError(f"{len(tokens)} tokens exceed the free cells")
        held: list[int] = []
        for state in states:
            start, decoded = read_fake_state(state)
            if start != len(held):
                raise StateError(f"a state begins at token {start}, not at {len(held)}")
            held += decoded
        if len(held) != len(tokens):
            raise StateError(f"the states have {len(held)} tokens, not {len(tokens)}")
        self._backend.n_loaded += 1
        self.cells = [FakeCell(token) for token in held]
        self._tokens = list(tokens)

    def close(self) -> None:
        self._tokens = []
        self.cells = []
        if self in self._backend.opened:
            self._backend.opened.remove(self)

    def _decode(self, tokens: Tokens[int]) -> None:
        if self._backend.is_aborted:
            raise DecodeAborted("stopped")
        if len(tokens) > self._backend.n_free(self):
            raise ContextFullError(f"{len(tokens)} tokens exceed the free cells")
        self._backend.n_decodes += 1
        self._backend.n_decoded += len(tokens)
        self._tokens.extend(tokens)
        self.cells.extend(FakeCell(token + self._backend.mark) for token in tokens)


def target_function(
    backend: FakeBackend,
) -> Callable[[Tokens[int], Tokens[int]], Logits]:
    """Target function of a `CallbackDecoder` that uses a fake model."""

    def target(line: Tokens[int], draft: Tokens[int]) -> Logits:
        lines = ((*line, *draft[:n]) for n in range(len(draft) + 1))
        return np.stack([backend.logits_after(each) for each in lines])

    return target


def draft_function(backend: FakeBackend) -> Callable[[Tokens[int], int], Iterator[int]]:
    """Draft function of a `CallbackDecoder` that returns a fake model's top tokens."""

    def draft(line: Tokens[int], n_max: int) -> Iterator[int]:
        tokens = list(line)
        for _ in range(n_max):
            tokens.append(int(backend.logits_after(tokens).argmax()))
            yield tokens[-1]

    return draft
