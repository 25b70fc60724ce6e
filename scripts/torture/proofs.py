"""Shows that each check can fail: one thing is broken on purpose, and must be found."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torture.ledger import Kind, Ledger, Tally
from torture.oracle import Judge
from torture.plan import Aim, Choice, Sabotage
from torture.rounds import Home, Rounds

N_LIVES = 5
N_STEPS = 2


@dataclass(frozen=True, slots=True)
class Proof:
    """What is broken, and which check must say so."""

    sabotage: Sabotage
    found_as: Kind
    aim: Aim = field(default_factory=Aim)


PROOFS = (
    Proof("state", "answer"),
    Proof("commit", "database"),
    Proof("crash", "crash"),
    Proof("traceback", "log"),
    Proof("draft", "leftover"),
    Proof("stay", "hang", Aim("chat commits", 4, 0.0, "app")),
)


def prove_all(choices: Sequence[Choice], folder: Path) -> bool:
    """Break one thing after the other; False where a check did not see it."""
    is_proven = True
    for proof in PROOFS:
        found = prove(proof, choices[0], folder / f"proof-{proof.sabotage}")
        is_proven &= found
        said = "is found" if found else "IS NOT FOUND"
        print(f"proof: {proof.sabotage} broken on purpose {said} ({proof.found_as})", flush=True)
    return is_proven


def prove(proof: Proof, choice: Choice, folder: Path) -> bool:
    """Live with something broken, and tell whether the check that is meant saw it."""
    tally = Tally(said="found")
    judge = Judge([choice], tally)
    rounds = Rounds(tally, judge, random.Random(1))
    home = Home(folder, (choice,), Ledger())
    for _ in range(N_LIVES):
        plan = replace(
            home.plan(seed=home.n_lives), sabotage=proof.sabotage, aim=proof.aim, n_steps=N_STEPS
        )
        rounds.live(home, [plan], kills=False)
        if any(violation.kind == proof.found_as for violation in tally.violations):
            break
    judge.close()
    return any(violation.kind == proof.found_as for violation in tally.violations)
