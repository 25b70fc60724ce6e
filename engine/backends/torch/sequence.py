"""One line of tokens whose keys and values are tensors, a cache for each layer."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

import torch

from engine.backends.base import Forward, Logits, Sequence, Step, check_steps
from engine.backends.torch.caches.paged import BlockPrefixes, BlockTable
from engine.backends.torch.caches.tracing import CacheTrace
from engine.backends.torch.decode_plan import DecodePlan
from engine.backends.torch.device import quickest_products
from engine.backends.torch.fixed_steps import FixedSteps
from engine.backends.torch.model import LayerCache, Line, Transformer
from engine.backends.torch.state import State, cut, join_layers, read_layers, write_layers
from engine.configuration import MAX_DRAFT
from engine.errors import (
    ContextFullError,
    CropUnsupportedError,
    DecodeError,
    EngineError,
    StateError,
)


@dataclass(frozen=True, slots=True)
class Context:
    """A model and what its sequences share."""

    model: Transformer
    n_ctx: int
    """Tokens of one sequence."""
    n_batch: int
    n_rows: int
    plan: DecodePlan | None = None
    """What each token sees; None is what the model was trained to see."""
    shares_cells: bool = False
    """Whether `n_ctx` is of all sequences together."""
    prefixes: BlockPrefixes | None = None
    """Beginnings of earlier lines in blocks of the sequences' pool."""
    trace: CacheTrace | None = None
    fixed: FixedSteps | None = None
    """Decodes a few tokens of one sequence, where the caches have fixed shapes."""
    open: "dict[int, TorchSequence]" = field(default_factory=dict)
    """The sequences that are open, by their numbers."""


class TorchSequence:
    """Invariant: every cache holds exactly `tokens`, as far as its kind keeps them."""

    def __init__(
        self,
        context: Context,
        number: int,
        caches: list[LayerCache],
        table: BlockTable | None = None,
    ) -> None:
        """An empty sequence.

        Args:
            context: What it shares with others.
            number: Of the sequence.
            caches: Of its layers.
            table: Of its blocks, where they come from a pool.
        """
        self._context = context
        self.number = number
        self._caches = caches
        self._table = table
        self._tokens: list[int] = []
        context.open[number] = self

    @property
    def tokens(self) -> Tokens[int]:
        return self._tokens

    @property
    def caches(self) -> Tokens[LayerCache]:
        """The cache of each layer."""
        return self._caches

    def prefill(self, tokens: Tokens[int]) -> None:
        if tokens:
            decode_steps(self._context, [Step(self, unread=tokens)])

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        [forward] = decode_steps(self._context, [Step(self, tokens, unread)])
        return forward

    def can_crop(self, length: int) -> bool:
        if length in (0, len(self._tokens)):
            return True
        return length <= len(self._tokens) and all(each.can_crop(length) for each in self._caches)

    def crop(self, length: int) -> None:
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"the cache holds {len(self._tokens)} tokens and cannot go back to {length}: "
                "a layer no longer has what that needs; start again from 0"
            )
        if length < len(self._tokens):
            if len(self._tokens) - length > MAX_DRAFT:
                self._keep_blocks()
            for cache in self._caches:
                cache.crop(length)
            del self._tokens[length:]

    def save(self, start: int = 0) -> bytes | memoryview:
        n_held = len(self._tokens)
        if not 0 <= start < n_held:
            raise StateError(f"the cache holds {n_held} tokens: none from {start} on")
        state = write_layers(0, n_held, [cache.save() for cache in self._caches])
        return cut(state, start)[1] if start else state

    def load(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        if len(tokens) > self._context.n_ctx:
            raise ContextFullError(
                f"a state of {len(tokens)} tokens was asked for and the context has "
                f"{self._context.n_ctx} cells: raise the context"
            )
        self.crop(0)
        try:
            layers = join_layers([read_layers(state) for state in states], len(tokens))
            if len(layers) != len(self._caches):
                raise StateError(
                    f"the saved state has {len(layers)} layers and the model {len(self._caches)}"
                )
            for cache, layer in zip(self._caches, layers, strict=True):
                cache.load(layer)
                if cache.length != len(tokens):
                    raise StateError(
                        f"the saved state holds {cache.length} tokens where {len(tokens)} were "
                        "expected"
                    )
        except EngineError:
            self._forget()
            raise
        self._tokens = list(tokens)

    def copy(self, source: Sequence, length: int) -> None:
        theirs = source._table if isinstance(source, TorchSequence) else None
        if self._table is None or theirs is None or not self._context.shares_cells:
            raise StateError(
                "these sequences share no cells: save one and load it, or take the cache kind "
                "paged with a context that is shared (kv_unified)"
            )
        if not source.can_crop(length):
            raise CropUnsupportedError(
                f"the cache holds {len(source.tokens)} tokens: its first {length} are not there"
            )
        tokens = list(source.tokens[:length])
        self._keep_blocks()
        self._table.adopt(theirs.blocks[: -(-length // theirs.pool.block_size)], length)
        self._tokens = tokens

    def n_regainable(self, tokens: Tokens[int]) -> int:
        return 0 if self._context.prefixes is None else self._context.prefixes.n_known(tokens)

    def regain(self, tokens: Tokens[int]) -> int:
        prefixes = self._context.prefixes
        if prefixes is None or self._table is None:
            return len(self._tokens)
        if prefixes.n_known(tokens) > len(self._tokens):
            self._keep_blocks()
            self._tokens = list(tokens[: prefixes.match(tokens, self._table)])
        return len(self._tokens)

    def shift(self, n_keep: int, n_drop: int) -> None:
        raise CropUnsupportedError(
            f"{n_drop} tokens behind {n_keep} cannot be dropped: keys are kept turned by their "
            "positions; start again from 0"
        )

    def close(self) -> None:
        if self._context.open.get(self.number) is not self:
            return
        self._keep_blocks()
        self._forget()
        del self._context.open[self.number]

    def _keep_blocks(self) -> None:
        """What it holds may be found again until others need the blocks."""
        if self._context.prefixes is not None and self._table is not None:
            self._context.prefixes.insert(self._tokens, self._table)

    def _forget(self) -> None:
        for cache in self._caches:
            cache.crop(0)
        self._tokens = []

    def check_room(self, n_tokens: int) -> None:
        """Raise `ContextFullError` where so many more tokens do not fit."""
        check_cells(self._context, len(self._tokens), n_tokens)

    def hold(self, tokens: Tokens[int]) -> None:
        """The caches hold these tokens too."""
        self._tokens.extend(tokens)

    def roll_back(self) -> None:
        """After a forward that stopped half-way: hold `tokens` again, or nothing."""
        n_held = len(self._tokens)
        if all(cache.length == n_held or cache.can_crop(n_held) for cache in self._caches):
            for cache in self._caches:
                cache.crop(n_held)
        else:
            self._forget()


def decode_steps(context: Context, steps: Tokens[Step]) -> list[Forward]:
    """Decode steps of several sequences in one batch of tensors, as `Backend.verify_batch` says.

    Raises:
        ContextFullError: they are more than fit; nothing was decoded.
        DecodeAborted: stopped; the sequences know what they hold.
        DecodeError: torch failed; the sequences know what they hold.
    """
    check_steps(steps, n_rows=context.n_rows, n_batch=context.n_batch)
    pairs = [(step, _of(step)) for step in steps]
    for step, sequence in pairs:
        sequence.check_room(step.n_tokens)
    if context.shares_cells:
        n_held = sum(len(sequence.tokens) for sequence in context.open.values())
        check_cells(context, n_held, sum(step.n_tokens for step in steps))
    lines = [Line(one.caches, step.n_tokens, len(step.tokens)) for step, one in pairs]
    tokens = [token for step in steps for token in (*step.unread, *step.tokens)]
    try:
        with torch.inference_mode(), quickest_products(len(tokens)):
            at = torch.tensor([tokens], device=context.model.device)
            logits = None
            if context.fixed is not None and len(lines) == 1:
                logits = context.fixed.take(at, lines[0], pairs[0][1].number)
            if logits is None:
                logits = context.model.forward(at, lines, context.plan)
            rows: Logits = logits[0].float().cpu().numpy()
    except (EngineError, RuntimeError, IndexError) as error:
        for _, sequence in pairs:
            sequence.roll_back()
        if isinstance(error, EngineError):
            raise
        raise DecodeError(
            f"torch could not decode {len(tokens)} tokens: {_reason(error)}"
        ) from error
    forwards, start = [], 0
    for step, sequence in pairs:
        sequence.hold((*step.unread, *step.tokens))
        end = start + len(step.tokens)
        forwards.append(Forward(rows[start:end]))
        start = end
    return forwards


def check_cells(context: Context, n_held: int, n_tokens: int) -> None:
    """Raise `ContextFullError` where so many more tokens do not fit behind those held."""
    n_free = context.n_ctx - n_held
    if n_tokens > n_free:
        raise ContextFullError(
            f"{n_tokens} more tokens were asked but {n_free} of {context.n_ctx} cells are free: "
            "raise the context, or shorten the chat"
        )


def _of(step: Step) -> TorchSequence:
    sequence = step.sequence
    assert isinstance(sequence, TorchSequence)
    return sequence


def _reason(error: Exception) -> str:
    """What torch says itself: a full memory, or a token that the model does not have."""
    if isinstance(error, torch.OutOfMemoryError):
        return "the device's memory is full; take a smaller context or batch"
    return str(error).partition("\n")[0]
