"""Uses kvchat at random in a terminal of its own, and looks after each step at what must hold.

    make walk [STEPS=2000] [SEED=N] [MODEL=GGUF] [REPLAY=FOLDER]
    make sessions [N=500] [SEED=N]

A user who does anything is played by the seed: asks, edits, branches, opens every screen, types
odd paths, clicks, pastes, resizes, kills the engine, lets servers misbehave, and ends kvchat by its
key or a signal. In some lives the engine or the application is killed while a state is written,
read or removed, or while a database commits. What must hold: it runs and paints, no exception, no
sequence that a text smuggled to the terminal, no report of a fault, nothing lost of what was asked
or shown, counts that add up, files of the user as they were, no engine left behind, bounded memory.
What is found is kept in a folder with all that repeats it.
"""

import argparse
import random
import sys
import tempfile
from pathlib import Path

from walker.walk import Walk, replay


def main() -> int:
    """Walk; 1 where something was found."""
    options = parsed()
    if options.replay is not None:
        return int(replay(options.replay, pause_s=options.pause))
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}, {options.steps} steps", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"kvchat-walk-{seed}-", dir=options.folder) as name:
        models = [path.resolve() for path in options.model]
        walk = Walk(seed, Path(name), options.found, models, most_found=options.most)
        n_found = walk.run(options.steps)
    print(", ".join(f"{screen} {n}" for screen, n in walk.tally.screens.most_common()))
    for signature, n in walk.signatures.most_common():
        print(f"FOUND {n} times: {signature}")
    print("NOT CLEAN" if n_found else "clean")
    return int(bool(n_found))


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="walker", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, help="of the walk; any if not given")
    parser.add_argument("--model", type=Path, action="append", default=[], help="GGUF, repeatable")
    parser.add_argument("--replay", type=Path, help="folder of something that was found")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between its operations")
    parser.add_argument("--most", type=int, help="different faults after which it ends")
    parser.add_argument("--folder", type=Path, help="where homes are made")
    parser.add_argument(
        "--found", type=Path, default=Path(tempfile.gettempdir()) / "kvchat-found",
        help="where what is found is kept",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
