"""Base classes of backends and sequences, without optional features."""

from collections.abc import Container
from collections.abc import Sequence as Tokens

import numpy as np

from engine.backends.base import Backend, Forward, Step
from engine.configuration import Adapter
from engine.errors import AdapterError, ContextFullError, CropUnsupportedError, StateError

State = bytes | memoryview


class BaseBackend:
    """A backend with one sequence and without saved states, adapters and threads.

    Subclasses implement either `verify_batch`, or `prefill` and `verify` of their sequences.
    """

    can_crop = True
    n_sequences = 1
    n_threads: tuple[int, int] = (1, 1)
    is_aborted = False
    no_states = "this backend cannot save states"
    no_adapters = "this backend does not support adapters"

    def set_threads(self, n_threads: int) -> None:
        del n_threads

    def use_adapters(self, adapters: Tokens[Adapter] | None) -> None:
        if adapters:
            raise AdapterError(self.no_adapters)

    def verify_batch(self, steps: Tokens[Step]) -> list[Forward]:
        return verify_in_turn(steps)

    def abort(self) -> None:
        self.is_aborted = True

    def clear_abort(self) -> None:
        self.is_aborted = False

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class BaseSequence:
    """A sequence that can be cropped to any length but not saved or loaded."""

    no_states = BaseBackend.no_states

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._tokens: list[int] = []

    @property
    def tokens(self) -> Tokens[int]:
        return self._tokens

    def prefill(self, tokens: Tokens[int]) -> None:
        if tokens:
            self._backend.verify_batch((Step(self, unread=tokens),))

    def decode(self, token: int) -> Forward:
        return self.verify((token,))

    def verify(self, tokens: Tokens[int], *, unread: Tokens[int] = ()) -> Forward:
        [forward] = self._backend.verify_batch((Step(self, tokens, unread),))
        return forward

    def can_crop(self, length: int) -> bool:
        return 0 <= length <= len(self._tokens)

    def crop(self, length: int) -> None:
        if not self.can_crop(length):
            raise CropUnsupportedError(
                f"a sequence of {len(self._tokens)} tokens cannot be cropped to {length}"
            )
        del self._tokens[length:]

    def save(self, start: int = 0) -> State:
        del start
        raise StateError(self.no_states)

    def load(self, tokens: Tokens[int], states: Tokens[State]) -> None:
        del tokens, states
        self.crop(0)
        raise StateError(self.no_states)

    def close(self) -> None:
        self._tokens.clear()


def verify_in_turn(steps: Tokens[Step]) -> list[Forward]:
    """Decode steps one after the other, as an implementation of `Backend.verify_batch`.

    The logits are copies, because each call on the backend invalidates the previous ones.
    """
    forwards: list[Forward] = []
    for step in steps:
        if step.tokens:
            logits = step.sequence.verify(step.tokens, unread=step.unread).logits
        else:
            step.sequence.prefill(step.unread)
            logits = np.empty((0, 0), np.float32)
        forwards.append(Forward(logits.copy()))
    return forwards


def free_number(opened: Container[int], n_sequences: int) -> int | None:
    """Number of the first closed sequence; None if the backend has only one and it is open.

    Raises:
        ContextFullError: all of several sequences are open.
    """
    number = next((each for each in range(n_sequences) if each not in opened), None)
    if number is None and n_sequences > 1:
        raise ContextFullError(
            f"all {n_sequences} slots of the model are in use: close a sequence, or load "
            "the model with more slots"
        )
    return number


def check_cells(n_tokens: int, n_held: int, n_ctx: int) -> None:
    """Raise `ContextFullError` if more than the free cells are needed."""
    if n_tokens > n_ctx - n_held:
        raise ContextFullError(
            f"{n_tokens} more tokens were requested, but only {n_ctx - n_held} of {n_ctx} "
            "cells are free: raise n_ctx, or shorten the chat"
        )
