"""Walks through lives of kvchat, keeps what is needed to repeat a finding, and repeats one."""

import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.files import DRAFT_SUFFIX
from walker.checks import Saved
from walker.home import Home, Servers, make_models
from walker.life import MODULE, FoundError, LeftError, Life, Tally
from walker.user import User

STEPS_OF_A_LIFE = (40, 250, 500, 500)
LIVES_OF_A_HOME = 12
LOOK_EVERY = 25
"""Steps between two looks at what costs more: memory, counts, files."""
TOLD_EVERY = 1000
SHOWN_OPS = 30
ENDS = ("quit", "quit", "quit", "KILL", "KILL", "TERM", "HUP")
CASE = "case.json"
OPS = "ops.jsonl"
BEFORE = "home"


@dataclass
class Walk:
    """A walk of so many steps by one seed."""

    seed: int
    folder: Path
    """Where homes are made."""
    found: Path
    """Where what was found is kept."""
    models: Sequence[Path] = ()
    """Real models besides the tiny ones."""
    module: str = MODULE
    user: type[User] = User
    most_found: int | None = None
    """Different faults after which it ends."""
    tally: Tally = field(default_factory=Tally)
    signatures: Counter[str] = field(default_factory=Counter)

    def run(self, n_steps: int) -> int:
        """Walk, and give how many different faults were found."""
        rng = random.Random(self.seed)
        tiny = make_models(self.folder / "models")
        servers = Servers()
        servers.start()
        started = time.monotonic()
        try:
            home: Home | None = None
            saved = Saved()
            while self.tally.n_steps < n_steps and not self._has_enough:
                if home is None or self.tally.n_lives % LIVES_OF_A_HOME == 0:
                    if home is not None:
                        shutil.rmtree(home.folder, ignore_errors=True)
                    path = self.folder / f"home{self.tally.n_lives}"
                    home, saved = Home(path, [*tiny, *self.models]), Saved()
                    home.make()
                if not self._live(home, saved, servers, rng, n_steps, started):
                    shutil.rmtree(home.folder, ignore_errors=True)
                    home = None
        finally:
            servers.close()
        print(self.tally.line(time.monotonic() - started), flush=True)
        return len(self.signatures)

    @property
    def _has_enough(self) -> bool:
        return self.most_found is not None and len(self.signatures) >= self.most_found

    def _live(
        self, home: Home, saved: Saved, servers: Servers, rng: random.Random, n_steps: int,
        started: float,
    ) -> bool:  # fmt: skip
        """Live once; False where something was found, so that the home is doubtful."""
        before = self.folder / BEFORE
        shutil.rmtree(before, ignore_errors=True)
        arguments = home.set_up(rng)
        home.copy_to(before)
        self.tally.n_lives += 1
        name = f"{self.seed}-{self.tally.n_lives}"
        life = Life(home, arguments, servers, saved, self.tally, self.folder / OPS, self.module)
        user = self.user(life, random.Random(rng.randrange(2**32)), name)
        acts: list[str] = []
        try:
            life.begin()
            for _ in range(rng.choice(STEPS_OF_A_LIFE)):
                if self.tally.n_steps >= n_steps:
                    break
                acts.append(user.step())
                self.tally.n_steps += 1
                self.tally.acts[acts[-1]] += 1
                life.look(at_all=self.tally.n_steps % LOOK_EVERY == 0)
                user.shown = life.shown
                if self.tally.n_steps % TOLD_EVERY == 0:
                    print(self.tally.line(time.monotonic() - started), flush=True)
            life.end(rng.choice(ENDS))
        except LeftError as error:
            return self._is_clean_end(life, home, arguments, acts, error.code)
        except FoundError as error:
            self._keep(error, life, home, arguments, acts)
            return False
        finally:
            life.close()
        return True

    def _is_clean_end(
        self, life: Life, home: Home, arguments: Sequence[str], acts: Sequence[str], code: int
    ) -> bool:
        try:
            life.close_down("quit", code, ())
        except FoundError as error:
            self._keep(error, life, home, arguments, acts)
            return False
        return True

    def _keep(
        self, error: FoundError, life: Life, home: Home, arguments: Sequence[str],
        acts: Sequence[str],
    ) -> None:  # fmt: skip
        """Say what was found, and keep what repeats it, unless the same was found before."""
        self.tally.found[error.kind] += 1
        self.signatures[error.signature] += 1
        if self.signatures[error.signature] > 1:
            print(f"again ({self.signatures[error.signature]}): {error.signature}", flush=True)
            return
        step = self.tally.n_steps
        kept = self.found / f"{self.seed}-{step}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        shutil.copytree(self.folder / BEFORE, kept / BEFORE, symlinks=True)
        shutil.copy(self.folder / OPS, kept / OPS)
        if home.state.exists():
            half_written = shutil.ignore_patterns(f"*{DRAFT_SUFFIX}")  # gone while it is copied
            shutil.copytree(home.state, kept / "state", symlinks=True, ignore=half_written)
        case = {"arguments": [*arguments], "from": str(home.folder), "kind": error.kind,
                "aim": home.aim}  # fmt: skip
        (kept / CASE).write_text(json.dumps(case))
        screen = "\n".join(life.terminal.screen.lines)
        last = "\n".join(json.dumps(op) for op in life.ops[-SHOWN_OPS:])
        text = (
            f"FOUND {error}\n\nseed {self.seed}, step {step}, of this life: {len(acts)}\n"
            f"last acts: {' '.join(acts[-SHOWN_OPS:])}\nlast operations:\n{last}\n"
            f"screen {life.terminal.screen.width}x{life.terminal.screen.height}, "
            f"{life.shown}:\n{screen}\n"
            f"again: make walk REPLAY={kept}\n"
        )
        (kept / "report.txt").write_text(text, errors="backslashreplace")
        print(text.encode(errors="backslashreplace").decode(), flush=True)


def replay(case: Path, *, pause_s: float = 0.0, module: str = MODULE) -> bool:
    """Repeat a life with a finding; True where something is found again."""
    told = json.loads((case / CASE).read_text())
    with tempfile.TemporaryDirectory(prefix="kvchat-replay-") as name:
        folder = Path(name)
        models = make_models(folder / "models")
        home = Home(folder / "home", models)
        shutil.copytree(case / BEFORE, home.folder, symlinks=True)
        _move(home.folder, told["from"], str(home.folder))
        home.make()
        home.aim = _moved(told["aim"], told["from"], str(home.folder))
        servers = Servers()
        servers.start()
        arguments = [_moved(each, told["from"], str(home.folder)) for each in told["arguments"]]
        life = Life(home, arguments, servers, Saved(), Tally(), folder / OPS, module)
        try:
            life.begin()
            for line in (case / OPS).read_text().splitlines():
                kind, *values = json.loads(line)
                getattr(life, kind)(*values)
                life.look(at_all=False)
                time.sleep(pause_s)
        except LeftError:
            print("it was left without a fault")
            return False
        except FoundError as error:
            print(f"FOUND AGAIN {error}")
            print("\n".join(life.terminal.screen.lines))
            return True
        finally:
            life.close()
            servers.close()
    print("nothing was found this time")
    return False


def _moved(text: str, old: str, new: str) -> str:
    """A path of another walk as one of this."""
    old_models, new_models = (str(Path(each).parent / "models") for each in (old, new))
    return text.replace(old, new).replace(old_models, new_models)


def _move(home: Path, old: str, new: str) -> None:
    config = home / "config" / "kvchat" / "config.toml"
    text = config.read_bytes().decode(errors="surrogateescape")
    config.write_bytes(_moved(text, old, new).encode(errors="surrogateescape"))
