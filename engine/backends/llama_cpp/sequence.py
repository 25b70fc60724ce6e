"""One of the lines of tokens in a llama.cpp context."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field, replace
from itertools import pairwise

import llama_cpp
import numpy as np

from engine.backends.base import Forward, Logits, Sequence, Step, check_steps
from engine.backends.llama_cpp.batch import Batch, LogitsRows
from engine.backends.llama_cpp.projector import Projector
from engine.backends.llama_cpp.state_format import Integers, State
from engine.backends.llama_cpp.states import States
from engine.errors import (
    ContextFullError,
    CropUnsupportedError,
    DecodeAborted,
    DecodeError,
    EngineError,
    StateError,
)
from engine.images import before_image, behind_images

DECODED, NO_CELLS, ABORTED = 0, 1, 2
FILLER = 0
"""A token whose meaning does not matter."""
MOST_FILLERS = 2
"""In a row. On two cores 7 rows of the starter model take 1.1 plain steps more as two batches, and
a row takes 0.5; on a GPU a row takes nearly nothing."""


@dataclass(frozen=True, slots=True)
class Context:
    """One context, as its sequences see it."""

    native: object
    """llama.cpp's own handle."""
    memory: object
    states: States
    batch: Batch
    logits: LogitsRows
    n_ctx: int
    """Cells of one sequence, or of all where they share."""
    n_batch: int
    n_ubatch: int
    n_rows: int
    n_swa: int
    is_recurrent: bool
    shares_cells: bool
    can_shift: bool
    is_stopped: Callable[[], bool]
    projector: Projector | None = None
    open: "dict[int, LlamaCppSequence]" = field(default_factory=dict)
    """The sequences that are open, by their ids."""


class LlamaCppSequence:
    """Invariant: the context holds exactly `tokens` for its id, at positions 0, 1, ….

    Where rows and columns of images are positions, several tokens of an image have the same one
    (`Projector.positions`). A sliding window has moved on from early tokens; `can_crop` knows how
    far back is whole.
    """

    def __init__(self, context: Context, sequence_id: int) -> None:
        self._context = context
        self._id = sequence_id
        self._tokens: list[int] = []
        self._n_seen = 0
        """First tokens up to the end of the last image."""
        self._n_folded = 0
        """By how many of them they are more than their positions."""
        self._n_shared = 0
        """Longest prefix whose cells another sequence may hold too."""
        self._n_gone = 0
        """First tokens that a restored sliding window lacks, whatever positions are filled."""
        self._is_ring_broken = False
        """Whether the window's cells lie in another order than plain decoding's."""
        self._is_shifted = False
        context.open[sequence_id] = self

    @property
    def tokens(self) -> Tokens[int]:
        return self._tokens

    def prefill(self, tokens: Tokens[int]) -> None:
        decode_steps(self._context, (Step(self, unread=tokens),))

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        return decode_steps(self._context, (Step(self, tokens, unread),))[0]

    def can_crop(self, length: int) -> bool:
        held = len(self._tokens)
        if length in (0, held):
            return True
        if length > held or self._context.is_recurrent:
            return False
        is_within_image = before_image(self._tokens, length) < length < self._n_seen
        return not is_within_image and self._window_is_whole(length)

    def crop(self, length: int) -> None:
        if length == len(self._tokens):
            return
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"the cache holds {len(self._tokens)} tokens and cannot go back to {length}: "
                f"{self._why_not(length)}; start again from 0"
            )
        if not length:
            self._forget()
            return
        position = self._position(length)
        if not llama_cpp.llama_memory_seq_rm(self._context.memory, self._id, position, -1):
            raise CropUnsupportedError(
                f"llama.cpp refused to cut the cache back from {len(self._tokens)} to {length} "
                "tokens; start again from 0"
            )
        ring = self._context.states.ring
        if ring is not None and ring.is_broken(len(self._tokens), length):
            self._is_ring_broken = True
        del self._tokens[length:]
        if length < self._n_seen:
            self._n_seen, self._n_folded = behind_images(self._tokens), length - position
        self._n_shared = min(self._n_shared, length)

    def learn_states(self) -> None:
        """Learn the layout of this context's states, from a token of its own if it is empty."""
        states = self._context.states
        if states.is_learned:
            return
        is_empty = not self._tokens
        if is_empty:
            self.decode(0)
        states.learn(states.read(self._id))
        if is_empty:
            self.crop(0)

    def save(self, start: int = 0) -> bytes | memoryview:
        if self._is_shifted:
            raise StateError(
                "tokens were dropped from the middle of this sequence: what it holds no longer "
                "follows from its tokens, and is not saved"
            )
        if not 0 <= start < len(self._tokens):
            raise StateError(f"the cache holds {len(self._tokens)} tokens: none from {start} on")
        self.learn_states()
        states, positions = self._context.states, self._positions(self._tokens)
        if positions is not None:
            positions = positions[:-1]
        if start:
            return states.read_end(self._id, start, len(self._tokens), positions)
        state = states.read(self._id, positions)
        if self._is_ring_broken:
            self._hold(self._tokens, [state])
        return state

    def load(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        if len(tokens) > self._context.n_ctx:
            raise ContextFullError(
                f"a state of {len(tokens)} tokens was asked for and the context has "
                f"{self._context.n_ctx} cells: raise the context"
            )
        self.crop(0)
        self.learn_states()
        self._hold(tokens, states)

    def copy(self, source: Sequence, length: int) -> None:
        if not (isinstance(source, LlamaCppSequence) and self._context.shares_cells):
            raise StateError("cells can be shared within one context that shares them only")
        if source is self:
            self.crop(length)
            return
        if not source.can_crop(length):
            raise CropUnsupportedError(
                f"the cache holds {len(source.tokens)} tokens and its first {length} cannot be "
                "shared: its window has moved on, or it is recurrent"
            )
        self.crop(0)
        if length:
            end = source._position(length)
            llama_cpp.llama_memory_seq_cp(self._context.memory, source._id, self._id, 0, end)
            self._n_folded = length - end
        self._tokens = list(source.tokens[:length])
        self._n_seen = min(length, source._n_seen)
        self._is_shifted = source._is_shifted
        self._n_gone = source._n_gone
        self._n_shared = length
        source._n_shared = max(source._n_shared, length)

    def shift(self, n_keep: int, n_drop: int) -> None:
        n_held = len(self._tokens)
        if not self._context.can_shift:
            raise CropUnsupportedError(
                "this model's cache cannot drop tokens from its middle; start again from 0"
            )
        if not (n_drop > 0 and n_keep >= 0 and n_keep + n_drop <= n_held):
            raise CropUnsupportedError(
                f"the cache holds {n_held} tokens: {n_drop} behind the first {n_keep} are not there"
            )
        if self._n_shared > n_keep + n_drop:
            self._stop_sharing()
        end = n_keep + n_drop
        memory = self._context.memory
        if not llama_cpp.llama_memory_seq_rm(memory, self._id, n_keep, end):
            raise CropUnsupportedError("llama.cpp refused to drop tokens; start again from 0")
        llama_cpp.llama_memory_seq_add(memory, self._id, end, -1, -n_drop)
        del self._tokens[n_keep:end]
        self._n_shared = min(self._n_shared, n_keep)
        self._is_shifted = True

    def close(self) -> None:
        """Free the cells."""
        if self._context.open.get(self._id) is not self:
            return
        self._forget()
        del self._context.open[self._id]

    def _forget(self) -> None:
        llama_cpp.llama_memory_seq_rm(self._context.memory, self._id, -1, -1)
        self._tokens = []
        self._n_seen = self._n_folded = 0
        self._n_shared = 0
        self._is_shifted = False
        self._n_gone = 0
        self._is_ring_broken = False

    def _hold(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        """Replace what is held; the sequence is empty where that fails."""
        end = len(tokens)
        try:
            positions = self._positions(tokens)
            if positions is not None:
                positions, end = positions[:-1], int(positions[-1])
            n_gone = self._context.states.write(self._id, states, len(tokens), positions)
        except EngineError:
            self._forget()
            raise
        self._tokens = list(tokens)
        self._n_seen, self._n_folded = behind_images(tokens), len(tokens) - end
        self._n_gone = n_gone
        self._n_shared = 0
        self._is_ring_broken = False

    def _stop_sharing(self) -> None:
        """Move to cells of its own: moved positions would move in every sequence that shares."""
        self._hold(self._tokens, [self._context.states.read(self._id)])

    def _positions(self, tokens: Tokens[int]) -> Integers | None:
        """The positions of a line's tokens and of one more; None where they are 0, 1, …."""
        projector = self._context.projector
        return None if projector is None else projector.positions(tokens)

    def _position(self, length: int) -> int:
        """The position of a token that is held, or of the next one."""
        if length >= self._n_seen:
            return length - self._n_folded
        positions = self._positions(self._tokens)
        return length if positions is None else int(positions[length])

    def is_of(self, context: Context) -> bool:
        """Whether it is one of a context's."""
        return self._context is context

    def enter(self, step: Step, batch: Batch) -> None:
        """Put what a step of this sequence decodes into a batch.

        Raises:
            ContextFullError: it is more than there are free cells.
        """
        n_held = len(self._tokens)
        if step.n_tokens > self._context.n_ctx - n_held:
            raise ContextFullError(
                f"{step.n_tokens} more tokens were asked but {self._context.n_ctx - n_held} of "
                f"{self._context.n_ctx} cells are free: raise the context, or shorten the chat"
            )
        n_rows, position = len(step.tokens), n_held - self._n_folded
        if not n_rows or not step.unread:
            batch.add(self._id, step.tokens or step.unread, position, n_rows=n_rows)
        else:
            batch.add(self._id, (*step.unread, *step.tokens), position, n_rows=n_rows)

    def see(self, tokens: Tokens[int]) -> int:
        """Decode the stretch of an image that tokens begin with; how many of them that is.

        Raises:
            ImageError: the image is gone, or cannot be read.
            ContextFullError, DecodeAborted, DecodeError: as `decode_steps` does.
        """
        context = self._context
        assert context.projector is not None, "tokens of images come from a projector"
        start = len(self._tokens) - self._n_folded
        n_tokens, n_positions, status = context.projector.decode(
            context.native,
            self._id,
            tokens,
            start,
            n_batch=context.n_batch,
            check=self._check_stopped,
        )
        step = Step(self, unread=tokens[:n_tokens])
        if status != DECODED:  # a part of an image is none
            llama_cpp.llama_memory_seq_rm(context.memory, self._id, start, -1)
        self.settle(step, is_decoded=status == DECODED)
        if status != DECODED:
            raise _failure(status, [(step, self)])
        self._n_seen = len(self._tokens)
        self._n_folded += n_tokens - n_positions
        return n_tokens

    def _check_stopped(self) -> None:
        if self._context.is_stopped():
            raise DecodeAborted(f"stopped; the cache holds {len(self._tokens)} tokens")

    def settle(self, step: Step, *, is_decoded: bool) -> None:
        """Take that a step is over; where it failed, agree with what the memory holds."""
        if not is_decoded:
            self._read_what_is_held((*step.unread, *step.tokens))
            return
        self._tokens.extend(step.unread)
        self._tokens.extend(step.tokens)

    def _read_what_is_held(self, tokens: Tokens[int]) -> None:
        """Agree with the memory after a decode that stopped half-way."""
        last = llama_cpp.llama_memory_seq_pos_max(self._context.memory, self._id)
        line = [*self._tokens, *tokens]
        positions = self._positions(line)
        length = last + 1
        if positions is not None:
            length = int(np.searchsorted(positions, last, side="right"))
        self._tokens = line[:length]
        self._is_ring_broken = self._context.states.ring is not None
        if length and (self._context.is_recurrent or not self._window_is_whole(length)):
            self._forget()

    def _window_is_whole(self, length: int) -> bool:
        """Whether every cell that token `length` attends to, itself included, is still there.

        `seq_rm` returns True on a sliding-window cache too that it leaves without those cells.
        Where sequences share cells, all others of the window are soon another sequence's.
        """
        in_memory: int = llama_cpp.llama_memory_seq_pos_min(self._context.memory, self._id)
        first = max(in_memory, self._n_gone) if in_memory >= 0 else in_memory
        return 0 <= first <= max(0, length + 1 - self._context.n_swa)

    def _why_not(self, length: int) -> str:
        if length > len(self._tokens):
            return "it is shorter"
        if self._context.is_recurrent:
            return "a recurrent state has no past"
        return f"the sliding window of {self._context.n_swa} tokens has moved on"

    def others(self) -> str:
        """Tokens that other sequences hold; a prefix that they share counts for each."""
        others = [len(one.tokens) for one in self._context.open.values() if one is not self]
        if not self._context.shares_cells or not sum(others):
            return ""
        n_cells = self._context.n_ctx
        return f" (the sequences share {n_cells} cells, and others hold {sum(others)} tokens)"


def decode_steps(context: Context, steps: Tokens[Step]) -> list[Forward]:
    """Decode steps of several sequences of a context in one batch, as `Backend.verify_batch` says.

    Raises:
        ContextFullError: they are more than fit; nothing was decoded.
        DecodeAborted: stopped; the sequences know what they hold.
        DecodeError: llama.cpp failed; the sequences know what they hold.
    """
    if context.projector is not None:
        steps = [_behind_images(context, step) for step in steps]
    pairs = [(step, _of(context, step)) for step in steps]
    n_rows = check_steps(steps, n_rows=context.n_rows, n_batch=context.n_batch)
    by_id = {sequence._id: (step, sequence) for step, sequence in pairs}
    fillers = _fillers(context, by_id)
    context.batch.clear()
    for sequence_id in sorted((*by_id, *fillers)):
        if sequence_id in fillers:
            context.batch.add(sequence_id, (FILLER,), fillers[sequence_id], n_rows=0)
        else:
            step, sequence = by_id[sequence_id]
            sequence.enter(step, context.batch)
    status, rows = _decode_batch(context)
    for sequence_id, n_held in fillers.items():
        llama_cpp.llama_memory_seq_rm(context.memory, sequence_id, n_held, -1)
    for step, sequence in pairs:
        sequence.settle(step, is_decoded=status == DECODED)
    if status != DECODED:
        raise _failure(status, pairs)
    if rows is None:
        rows = context.logits.read() if n_rows else context.logits.none
    forwards, start = {}, 0
    for sequence_id in sorted(by_id):
        end = start + len(by_id[sequence_id][0].tokens)
        forwards[sequence_id] = Forward(rows[start:end])
        start = end
    return [forwards[sequence._id] for _, sequence in pairs]


def _decode_batch(context: Context) -> tuple[int, Logits | None]:
    """llama.cpp's status, and the rows where they cannot be read from the context afterwards.

    A window that is computed in several micro-batches is given each as a batch of its own: where
    llama.cpp looks for the cells of all before it computes the first (`llama_kv_cache::prepare`,
    0c1e57098), it drops the cells before any that a later one takes, and the first needs them.
    """
    batch = context.batch
    if not context.n_swa or batch.native.n_tokens <= context.n_ubatch:
        n_tokens = batch.native.n_tokens
        status = llama_cpp.llama_decode(context.native, batch.native) if n_tokens else DECODED
        return status, None
    rows = [context.logits.none]
    for stretch, n_rows in batch.stretches(context.n_ubatch):
        status = llama_cpp.llama_decode(context.native, stretch)
        if status != DECODED:
            return status, None
        if n_rows:
            rows.append(context.logits.read()[:n_rows].copy())
    return DECODED, np.concatenate(rows)


def _fillers(
    context: Context, by_id: Mapping[int, tuple[Step, LlamaCppSequence]]
) -> dict[int, int]:
    """Sequences that a token is decoded for so that others share a batch, and what each holds.

    Where sequences have cells of their own llama.cpp computes those together whose ids follow one
    another (`llama_batch_allocr::split_equal`, 0c1e57098), and reads all weights again behind each
    gap. So a short gap is filled, and what fills it taken back. A state that moves on, or a window,
    would not be as before.
    """
    if len(by_id) < 2 or context.shares_cells or context.is_recurrent or context.n_swa:
        return {}
    if any(step.n_tokens != 1 for step, _ in by_id.values()):
        return {}
    found: dict[int, int] = {}
    for before, behind in pairwise(sorted(by_id)):
        gap = range(before + 1, behind)
        held = [llama_cpp.llama_memory_seq_pos_max(context.memory, one) + 1 for one in gap]
        n_used = [len(context.open[one].tokens) for one in gap if one in context.open]
        if len(gap) <= MOST_FILLERS and max(n_used, default=0) < context.n_ctx:
            found.update(zip(gap, held, strict=True))
    has_room = len(by_id) + len(found) <= context.n_batch
    return found if has_room else {}


def _behind_images(context: Context, step: Step) -> Step:
    """What is left of a step when its images are decoded, and the text before them."""
    unread = step.unread
    while min(unread, default=0) < 0:
        sequence = _of(context, step)
        start = next(place for place, token in enumerate(unread) if token < 0)
        if start:
            decode_steps(context, (Step(sequence, unread=unread[:start]),))
        unread = unread[start + sequence.see(unread[start:]) :]
    return replace(step, unread=unread)


def _of(context: Context, step: Step) -> LlamaCppSequence:
    sequence = step.sequence
    assert isinstance(sequence, LlamaCppSequence)
    assert sequence.is_of(context), "a sequence belongs to the context that opened it"
    return sequence


def _failure(
    status: int, pairs: Tokens[tuple[Step, LlamaCppSequence]]
) -> DecodeAborted | ContextFullError | DecodeError:
    n_asked = sum(step.n_tokens for step, _ in pairs)
    n_held = sum(len(sequence.tokens) for _, sequence in pairs)
    if status == ABORTED:
        return DecodeAborted(f"stopped; the cache holds {n_held} tokens")
    if status == NO_CELLS:
        return ContextFullError(
            f"llama.cpp found no cells for {n_asked} tokens behind {n_held}{pairs[0][1].others()}: "
            "raise the context, or shorten the chat"
        )
    return DecodeError(
        f"llama_decode gave {status} for {n_asked} tokens behind {n_held}: the log has the "
        "reason; reload the model"
    )
