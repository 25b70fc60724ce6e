"""Use kvchat at random in a terminal, and check after each step what must hold.

    make walk [STEPS=2000] [SEED=N] [MODEL=GGUF] [REPLAY=FOLDER]
    make sessions [N=500] [SEED=N]

The seed plays a user who does anything: asks, edits, forks, opens every screen, types odd paths,
clicks, pastes, resizes, kills the engine, makes servers misbehave, and ends kvchat by its key or a
signal. In some lives the engine or the application is killed while a saved state is written, read
or removed, or while a database commits. The checks: kvchat runs and paints; no exception and no
fault report; no escape sequence from a text reaches the terminal; no question or shown reply is
lost; counts add up; the user's files are unchanged; no engine outlives kvchat; memory is bounded.
Each finding is saved in a folder with everything that repeats it.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from walker.walk import Walk, replay


def main() -> int:
    """Walk or replay; 1 if something was found."""
    parser = argparse.ArgumentParser(
        prog="walker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--model", type=Path, action="append", default=[], help="GGUF, repeatable")
    parser.add_argument("--replay", type=Path, help="folder of a finding")
    parser.add_argument("--found", type=Path, default=Path(tempfile.gettempdir(), "kvchat-found"),
                        help="folder for findings")  # fmt: skip
    options = parser.parse_args()
    if options.replay is not None:
        return int(replay(options.replay))
    print(f"seed {options.seed}, {options.steps} steps", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"kvchat-walk-{options.seed}-") as folder:
        models = [path.resolve() for path in options.model]
        walk = Walk(options.seed, Path(folder), options.found, models)
        n_found = walk.run(options.steps)
    print(", ".join(f"{screen} {n}" for screen, n in walk.tally.screens.most_common()))
    for signature, n in walk.tally.found.most_common():
        print(f"FOUND {n} times: {signature}")
    print("NOT CLEAN" if n_found else "clean")
    return int(bool(n_found))


if __name__ == "__main__":
    sys.exit(main())
