"""Walk through lives of kvchat, save what repeats a finding, and repeat one."""

import json
import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.files import DRAFT_SUFFIX
from walker.home import Home, Servers, make_models, running_servers
from walker.life import MODULE, FoundError, Life, Tally
from walker.user import User

STEPS_OF_A_LIFE = (40, 250, 500, 500)
LIVES_OF_A_HOME = 12
THOROUGH_EVERY = 25
"""Steps between two thorough checks."""
PRINT_EVERY = 1000
N_SHOWN = 30
"""Last acts and operations in a report."""
ENDS = ("quit", "quit", "quit", "KILL", "KILL", "TERM", "HUP")
CASE = "case.json"
OPS = "ops.jsonl"
BEFORE = "home"


@dataclass
class Walk:
    """A random walk by one seed.

    Args:
        seed: Makes the walk.
        folder: Homes are made here.
        found: Findings are saved here.
        models: Real models beside the tiny ones.
        module: Started in place of kvchat.
        user: Chooses the operations.
        max_found: Different findings that end the walk.
    """

    seed: int
    folder: Path
    found: Path
    models: Sequence[Path] = ()
    module: str = MODULE
    user: type[User] = User
    max_found: int | None = None
    tally: Tally = field(default_factory=Tally)
    started: float = field(default_factory=time.monotonic)

    def run(self, n_steps: int) -> int:
        """Walk; returns the number of different findings."""
        rng = random.Random(self.seed)
        models = [*make_models(self.folder / "models"), *self.models]
        home: Home | None = None
        is_clean = True
        with running_servers() as servers:
            while self.tally.n_steps < n_steps and len(self.tally.found) != self.max_found:
                if home is None or not is_clean or self.tally.n_lives % LIVES_OF_A_HOME == 0:
                    if home is not None:
                        shutil.rmtree(home.folder, ignore_errors=True)
                    home = Home(self.folder / f"home{self.tally.n_lives}", models)
                is_clean = self._live(home, servers, rng, n_steps)
        self._print_tally()
        return len(self.tally.found)

    def _live(self, home: Home, servers: Servers, rng: random.Random, n_steps: int) -> bool:
        """Live once; whether nothing was found."""
        before = self.folder / BEFORE
        shutil.rmtree(before, ignore_errors=True)
        arguments = home.set_up(rng)
        home.copy_to(before)
        self.tally.n_lives += 1
        life = Life(home, arguments, servers, self.tally, self.folder / OPS, self.module)
        name = f"{self.seed}-{self.tally.n_lives}"
        user = self.user(life, random.Random(rng.randrange(2**32)), name)
        try:
            self._use(life, user, rng, n_steps)
        except FoundError as error:
            self._save(error, life)
            return False
        finally:
            life.close()
        return True

    def _use(self, life: Life, user: User, rng: random.Random, n_steps: int) -> None:
        with life.may_be_left():
            life.begin()
            for _ in range(rng.choice(STEPS_OF_A_LIFE)):
                if self.tally.n_steps >= n_steps:
                    break
                life.acts.append(user.step())
                self.tally.n_steps += 1
                life.look(is_thorough=self.tally.n_steps % THOROUGH_EVERY == 0)
                user.shown = life.shown
                if self.tally.n_steps % PRINT_EVERY == 0:
                    self._print_tally()
            life.end(rng.choice(ENDS))

    def _print_tally(self) -> None:
        print(self.tally.line(time.monotonic() - self.started), flush=True)

    def _save(self, error: FoundError, life: Life) -> None:
        """Report a finding and save what repeats it, unless its fault is known."""
        signature = error.signature
        self.tally.found[signature] += 1
        if self.tally.found[signature] > 1:
            print(f"again ({self.tally.found[signature]}): {signature}", flush=True)
            return
        case = self.found / f"{self.seed}-{self.tally.n_steps}"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(self.folder / BEFORE, case / BEFORE, symlinks=True)
        shutil.copy(self.folder / OPS, case / OPS)
        if life.home.state.exists():
            half_written = shutil.ignore_patterns(f"*{DRAFT_SUFFIX}")  # gone while it is copied
            shutil.copytree(life.home.state, case / "state", symlinks=True, ignore=half_written)
        facts = {"arguments": [*life.arguments], "from": str(life.home.folder),
                 "kind": error.kind, "aim": life.home.aim}  # fmt: skip
        (case / CASE).write_text(json.dumps(facts))
        text = self._report(error, life, case)
        (case / "report.txt").write_text(text, errors="backslashreplace")
        print(text.encode(errors="backslashreplace").decode(), flush=True)

    def _report(self, error: FoundError, life: Life, case: Path) -> str:
        screen = life.terminal.screen
        return "\n".join((
            f"FOUND {error}\n",
            f"seed {self.seed}, step {self.tally.n_steps}, of this life: {len(life.acts)}",
            f"last acts: {' '.join(life.acts[-N_SHOWN:])}",
            "last operations:", *(case / OPS).read_text().splitlines()[-N_SHOWN:],
            f"screen {screen.width}x{screen.height}, {life.shown}:", *screen.lines,
            f"again: make walk REPLAY={case}\n",
        ))  # fmt: skip


def replay(case: Path, *, module: str = MODULE) -> bool:
    """Repeat the life of a finding; whether something is found again."""
    facts = json.loads((case / CASE).read_text())
    with tempfile.TemporaryDirectory(prefix="kvchat-replay-") as name, running_servers() as servers:
        folder = Path(name)
        home = Home(folder / "home", make_models(folder / "models"))
        home.copy_from(case / BEFORE, facts["from"])
        home.aim = home.moved(facts["aim"], facts["from"])
        arguments = [home.moved(each, facts["from"]) for each in facts["arguments"]]
        life = Life(home, arguments, servers, Tally(), folder / OPS, module)
        try:
            _repeat(life, (case / OPS).read_text().splitlines())
        except FoundError as error:
            print(f"FOUND AGAIN {error}")
            print("\n".join(life.terminal.screen.lines))
            return True
        finally:
            life.close()
    print("nothing was found this time")
    return False


def _repeat(life: Life, ops: Iterable[str]) -> None:
    with life.may_be_left():
        life.begin()
        for op in ops:
            name, *values = json.loads(op)
            getattr(life, name)(*values)
            if name == "end":
                return
            life.look(is_thorough=False)
        life.end("KILL")
