"""A language model small enough to enumerate, with the whole of the backend's promise."""

from collections.abc import Sequence as Tokens
from functools import lru_cache

import numpy as np

from engine.backends.base import Forward, Logits
from engine.errors import ContextFullError, CropUnsupportedError, DecodeAborted

SPECIALS = ("<bos>", "<end>", "<user>", "<assistant>", "<system>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


class FakeVocabulary:
    """Tokens 0 to n_plain - 1 are bytes from `a` on, behind them come control tokens."""

    kind = "FAKE"
    adds_bos = True
    adds_eos = False

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
        if token >= self.n_plain:
            return SPECIALS[token - self.n_plain].encode() if special else b""
        return bytes([token + self.first_byte])

    def text(self, token: int) -> bytes:
        return self.piece(token, special=True)


class FakeBackend:
    """Logits are a fixed function of the last `order` tokens and the seed.

    `sharpness` scales them; two backends of one seed and different noise are target and draft.
    `window` makes it a sliding-window model: crop works only while the window is still whole.
    """

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
    ) -> None:
        self.vocabulary = vocabulary or FakeVocabulary()
        self.n_ctx, self.n_batch, self.n_rows = n_ctx, n_batch, n_rows
        self.kv_bytes = 64 * n_ctx
        self.can_crop = can_crop
        self.n_decodes = 0
        self.n_decoded = 0
        self.is_aborted = False
        self.is_closed = False
        self._seed, self._order, self._sharpness = seed, order, sharpness
        self._noise, self._end_bias = noise, end_bias
        self._row = lru_cache(maxsize=None)(self._make_row)

    def open(self) -> "FakeSequence":
        return FakeSequence(self)

    def abort(self) -> None:
        self.is_aborted = True

    def clear_abort(self) -> None:
        self.is_aborted = False

    def close(self) -> None:
        self.is_closed = True

    def logits_behind(self, tokens: Tokens[int]) -> Logits:
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


class FakeSequence:
    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self._tokens: list[int] = []

    @property
    def tokens(self) -> Tokens[int]:
        return self._tokens

    def prefill(self, tokens: Tokens[int]) -> None:
        if len(tokens) > self._backend.n_batch:
            raise ContextFullError(f"{len(tokens)} tokens in a batch of {self._backend.n_batch}")
        self._decode(tokens)

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def verify(self, tokens: Tokens[int]) -> Forward:
        if len(tokens) > self._backend.n_rows:
            raise ContextFullError(f"{len(tokens)} rows of {self._backend.n_rows}")
        start = len(self._tokens)
        self._decode(tokens)
        rows = [
            self._backend.logits_behind(self._tokens[: start + n + 1]) for n in range(len(tokens))
        ]
        return Forward(np.stack(rows))

    def can_crop(self, length: int) -> bool:
        if length in (0, len(self._tokens)):
            return True
        return self._backend.can_crop and length <= len(self._tokens)

    def crop(self, length: int) -> None:
        if not self.can_crop(length):
            raise CropUnsupportedError(f"{len(self._tokens)} tokens cannot go back to {length}")
        del self._tokens[length:]

    def close(self) -> None:
        self._tokens = []

    def _decode(self, tokens: Tokens[int]) -> None:
        if self._backend.is_aborted:
            raise DecodeAborted("stopped")
        if len(self._tokens) + len(tokens) > self._backend.n_ctx:
            raise ContextFullError(f"{len(tokens)} tokens do not fit")
        self._backend.n_decodes += 1
        self._backend.n_decoded += len(tokens)
        self._tokens.extend(tokens)
