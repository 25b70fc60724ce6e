"""The engine's process as it is, but for its end, and for one thing that is broken on purpose."""

import os
import sys
import threading
from collections.abc import Sequence as Tokens
from pathlib import Path

from engine.files import DRAFT_SUFFIX
from engine.process import worker
from torture.kills import aim_in_worker
from torture.plan import Journal, Plan, plan_of_environment

N_FLIPPED = 64
"""Bytes of a state that are changed, spread over all of it."""
SOON_S = 0.7
DEAD_PID = 2**22 + 1
"""More than any process of Linux has for a number."""


def main() -> None:
    """Run the worker, killed where the plan says so."""
    plan = plan_of_environment()
    journal = Journal(Path(plan.journal))
    journal.tell("worker", pid=os.getpid())
    aim_in_worker(plan, journal)
    break_worker(plan)
    worker.main()


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
            _leave_a_draft(plan)
        case "stay":
            _outlive_the_front_end()
        case "build":
            _be_another_build()
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


def _leave_a_draft(plan: Plan) -> None:
    """Leave the half of a snapshot of a process that is dead, and let nobody remove it."""
    from engine.cache import snapshot_store as store

    setattr(store, "remove_leftovers", lambda _: None)  # noqa: B010  a name of another module
    plan.states.mkdir(parents=True, exist_ok=True)
    (plan.states / f"half.{DEAD_PID}{DRAFT_SUFFIX}").write_bytes(b"half")


def _outlive_the_front_end() -> None:
    """Let a worker go on when the pipe to its front end closes."""
    setattr(worker.Worker, "_end", lambda _: None)  # noqa: B010  a method of another class


def _be_another_build() -> None:
    """Let states be of another make, as behind an update of llama.cpp."""
    from engine.backends.llama_cpp.backend import LlamaCppBackend

    other = property(lambda _: "another build")
    LlamaCppBackend.state_format = other  # type: ignore[method-assign, assignment]


def _flipped(state: bytes | memoryview) -> bytes:
    """Change bytes in the back half, where keys and values lie, into others that are numbers."""
    changed = bytearray(state)
    half = len(changed) // 2
    for index in range(half, len(changed), max(1, half // N_FLIPPED)):
        changed[index] ^= 0x11
    return bytes(changed)


def _in_a_moment(do: "object") -> None:
    assert callable(do)
    timer = threading.Timer(SOON_S, do)
    timer.daemon = True
    timer.start()


def _raise() -> None:
    sys.stderr.write("Traceback (most recent call last):\n  made on purpose\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
