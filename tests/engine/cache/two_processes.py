"""One of several processes on one folder: `python -m tests.engine.cache.two_processes FOLDER`.

It writes, reads, pins, lists and deletes at random among the same states as the others, and prints
how many it read; it ends with 0 where every payload that it got was the right one.
"""

import contextlib
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

from engine.cache.store import SegmentStore
from engine.errors import StateError
from tests.engine.cache.making import NAMESPACE, OTHER, payload_of, state_of

SPACES = (NAMESPACE, OTHER)
STATES = {
    each.key: [state_of([n, n], namespace=each, nbytes=2000) for n in range(8)] for each in SPACES
}


def live(path: Path, seed: int, n_acts: int) -> int:
    """Do random things for a while, and give how many states were read whole."""
    choice = random.Random(seed)
    n_read = 0
    with SegmentStore(path) as store:
        for _ in range(n_acts):
            space = choice.choice(SPACES)
            state = choice.choice(STATES[space.key])
            match choice.randrange(8):
                case 0 | 1 | 2:
                    store.write(space, state, payload_of(state))
                case 3 | 4:
                    with contextlib.suppress(StateError):  # another one deleted it
                        assert store.read(state) == payload_of(state)
                        n_read += 1
                case 5:
                    store.delete([state.key])
                case 6:
                    known = {each.key: each for each in STATES[space.key]}
                    for found in store.segments(space.key):
                        assert found.packed == known[found.key].packed
                    store.save_uses([replace(state, owners=frozenset({f"chat:{seed}"}))])
                case _:
                    store.prune(choice.choice((5000, 10**9)), now=time.time())
        assert store.take_notes() == ()
    return n_read


if __name__ == "__main__":
    sys.stdout.write(str(live(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
