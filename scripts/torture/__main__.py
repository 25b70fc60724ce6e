"""The torture run: kills, faults and proofs, and the counts of all of it.

    make torture [KILLS=200]
    PYTHONPATH=scripts .venv/bin/python -m torture [--kills 200] [--seed N] [--model GGUF ...]
        [--only kills|faults|proofs] [--folder FOLDER]

kills    a real engine and a chat store without a screen are walked at random and killed with
         SIGKILL: at uniform moments, and while a snapshot is written, renamed, read or removed, its
         index commits or the chat database commits; the worker, the application or both; sometimes
         two applications share one home.
faults   the folder of snapshots is full, read-only, damaged, swapped, of another build, shared.
proofs   one thing is broken on purpose for each check, which must find it.

Each answer's tokens, and the bits by which each leads, are compared with those of an engine that
has no cache; every message whose saving was acknowledged must be in the database. Exit status 1
where a promise was broken.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torture.ledger import Ledger, Tally
from torture.oracle import Judge
from torture.plan import Choice, choices_of
from torture.rounds import Home, Rounds

PARTS = ("proofs", "faults", "kills")
ROUNDS_OF_A_HOME = 40
MOST_ROUNDS_PER_KILL = 4


def main() -> int:
    """Run what was asked for; 1 where a promise was broken."""
    options = parsed()
    choices = choices_of(options.model)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}; models: {', '.join(choice.name for choice in choices)}", flush=True)
    started = time.monotonic()
    is_clean = True
    with tempfile.TemporaryDirectory(prefix="kvchat-torture-", dir=options.folder) as folder:
        for part in PARTS if options.only is None else [options.only]:
            print(f"--- {part}", flush=True)
            is_clean &= run_part(part, options.kills, choices, random.Random(seed), Path(folder))
    print(f"{(time.monotonic() - started) / 60:.1f} minutes; seed {seed}")
    print("clean" if is_clean else "NOT CLEAN")
    return 0 if is_clean else 1


def run_part(
    part: str, n_kills: int, choices: Sequence[Choice], rng: random.Random, folder: Path
) -> bool:
    """Run one part and print its counts; False where a promise was broken."""
    if part == "proofs":
        from torture.proofs import prove_all

        return prove_all(choices, folder)
    tally = Tally()
    if part == "faults":
        from torture.faults import run_faults

        run_faults(choices, folder, tally, rng)
    else:
        run_kills(n_kills, tuple(choices), rng, folder, tally)
    print(tally.table(), flush=True)
    return not tally.violations


def run_kills(
    n_kills: int, choices: tuple[Choice, ...], rng: random.Random, folder: Path, tally: Tally
) -> None:
    """Run rounds until so many kills were made."""
    judge = Judge(choices, tally)
    rounds = Rounds(tally, judge, rng)
    home = Home(folder / "home1", choices, Ledger())
    n_rounds = 0
    while tally.n_kills < n_kills and n_rounds < MOST_ROUNDS_PER_KILL * n_kills:
        if n_rounds and n_rounds % ROUNDS_OF_A_HOME == 0:
            rounds.tidy(home)
            home = Home(folder / f"home{1 + n_rounds // ROUNDS_OF_A_HOME}", choices, Ledger())
        rounds.run(home)
        n_rounds += 1
        if n_rounds % 10 == 0:
            print(f"{tally.n_kills} kills in {n_rounds} rounds", flush=True)
    rounds.tidy(home)
    judge.close()
    tally.add("rounds", n_rounds)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, help="of the walk and the moments; any if not given")
    parser.add_argument("--model", type=Path, action="append", default=[], help="GGUF, repeatable")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--folder", type=Path, help="where the homes are made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
