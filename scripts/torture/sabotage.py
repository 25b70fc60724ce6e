"""Breaks one thing on purpose, so that the check which looks for it can be seen to fail."""

import os
import sys
import threading
from collections.abc import Sequence as Tokens

from torture.plan import Plan

N_FLIPPED = 64
"""Bytes of a state that are turned over, spread over all of it."""
SOON_S = 1.5


def break_worker(plan: Plan) -> None:
    """Break what the plan names in the engine's process."""
    match plan.sabotage:
        case "state":
            _load_other_states()
        case "crash":
            _in_a_moment(os.abort)
        case "traceback":
            _in_a_moment(_raise)
        case "draft":
            plan.states.mkdir(parents=True, exist_ok=True)
            (plan.states / "left-behind.1.new").write_bytes(b"nobody's")
        case _:
            pass


def _load_other_states() -> None:
    """Let every restored state hold other numbers than were saved."""
    from engine.backends.llama_cpp.sequence import LlamaCppSequence

    load = LlamaCppSequence.load

    def load_other(
        self: LlamaCppSequence, tokens: Tokens[int], states: Tokens[bytes | memoryview]
    ) -> None:
        load(self, tokens, [_flipped(state) for state in states])

    LlamaCppSequence.load = load_other  # type: ignore[method-assign]


def _flipped(state: bytes | memoryview) -> bytes:
    """Turn bytes in the back half over, where keys and values lie."""
    changed = bytearray(state)
    half = len(changed) // 2
    for index in range(half, len(changed), max(1, half // N_FLIPPED)):
        changed[index] ^= 0x55
    return bytes(changed)


def _in_a_moment(do: "object") -> None:
    assert callable(do)
    timer = threading.Timer(SOON_S, do)
    timer.daemon = True
    timer.start()


def _raise() -> None:
    sys.stderr.write("Traceback (most recent call last):\n  made on purpose\n")
    sys.stderr.flush()
