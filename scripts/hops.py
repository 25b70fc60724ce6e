"""How many functions and files stand between a question and its figure.

    python scripts/hops.py plan [MODEL] [OPTION ...]
    python scripts/hops.py round

`plan` runs `kvchat plan` and counts what is called in `app` and `engine` from the parsed options to
the printed plan. It prints the chain of functions to the first byte of the cache, the one to the
first printed line, and how many calls and files there were. It ends with 1 where the two chains
have more files than `MOST_FILES`.

`round` makes a reply of the test double with suffixes under `auto`, and counts what one round calls
in which `N_VERIFIED` drafted tokens were verified, the double itself apart. It ends with 1 where
there are more than `MOST_CALLS` in `MOST_ROUND_FILES` files.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

PACKAGES = tuple(f"{ROOT / name}/" for name in ("app", "engine"))
MOST_FILES = 15
N_VERIFIED = 4
MOST_CALLS, MOST_ROUND_FILES = 600, 22
Place = tuple[str, str]
"""A file and the name of a function in it."""


class Trace:
    """The calls inside the packages from a first function on, and the chains to some others."""

    def __init__(self, start: Place, ends: Sequence[Place]) -> None:
        """Count from `start`; keep the chain of the first call of each of `ends`."""
        self._start, self._ends = start, ends
        self.calls: Counter[Place] = Counter()
        self.chains: dict[Place, list[Place]] = {}

    def run(self, action: Callable[[], object]) -> None:
        """Do something and count its calls."""
        sys.setprofile(self._seen)
        try:
            action()
        finally:
            sys.setprofile(None)

    @property
    def files(self) -> set[str]:
        """The files of all that was called."""
        return {file for file, _ in self.calls}

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        place = place_of(frame.f_code) if event == "call" else None
        if place is None or not (self.calls or place == self._start):
            return
        self.calls[place] += 1
        if place in self._ends and place not in self.chains:
            self.chains[place] = self._chain(frame)

    def _chain(self, frame: FrameType | None) -> list[Place]:
        found: list[Place] = []
        while frame is not None:
            place = place_of(frame.f_code)
            if place is not None and not place[1].startswith("<"):
                found.insert(0, place)
            frame = None if place == self._start else frame.f_back
        return found


def place_of(code: CodeType) -> Place | None:
    """Where code of the packages stands; None for any other."""
    if not code.co_filename.startswith(PACKAGES):
        return None
    return str(Path(code.co_filename).relative_to(ROOT)), code.co_name


def show(trace: Trace) -> set[str]:
    """Print the chains and the counts; give the files of the chains."""
    files: set[str] = set()
    for (_, end), chain in trace.chains.items():
        print(f"to {end}: {len(chain)} functions")
        for file, name in chain:
            print(f"  {file}:{name}")
        files |= {file for file, _ in chain}
    print(f"{len(files)} files in these chains")
    print(
        f"{trace.calls.total()} calls of {len(trace.calls)} functions in {len(trace.files)} files"
    )
    return files


def plan(asked: argparse.Namespace) -> int:
    """From the parsed options of `kvchat plan` to its figure."""
    from app.cli.main import run

    ends = [("engine/memory/kv_cache.py", "layer_kv_bytes"), ("app/cli/console.py", "say")]
    trace = Trace(("app/cli/plan.py", "command"), ends)
    options = asked.options or ["qwen2.5-7b", "--vram", "8GiB", "--ram", "32GiB"]
    with redirect_stdout(StringIO()):
        run(["plan", *options])  # what is imported once does not count
        trace.run(lambda: run(["plan", *options]))
    return int(len(show(trace)) > MOST_FILES)


def one_round(asked: argparse.Namespace) -> int:
    """One round of a reply, from its draft to its events."""
    from engine.configuration import PredictorName, SpeculationSettings
    from engine.events import CacheChanged, RoundFinished
    from engine.generation.session import Session
    from engine.model.chat_template import ChatTemplate
    from engine.requests import Cancellation, GenerationRequest
    from engine.speculation.costs import CostProfile, KnownCost
    from engine.testing import TEMPLATE, FakeBackend, FakeVocabulary

    class Slow(FakeBackend):
        """As a model whose batches take as long as one row: drafts pay."""

        def logits_behind(self, tokens: Sequence[int]) -> Any:
            if len(tokens) == len(self.opened[0].tokens):
                time.sleep(0.002)
            return super().logits_behind(tokens)

    del asked
    target = Slow(
        FakeVocabulary(4, ord("a")), n_ctx=4096, n_rows=1 + N_VERIFIED, order=2, end_bias=-30.0
    )
    settings = SpeculationSettings(PredictorName.SUFFIX)
    template = ChatTemplate(TEMPLATE, bos="<bos>", eos="<end>")
    known = {"suffix": KnownCost(0.001, 0.0005, 0.0, 0.001)}
    costs = CostProfile(0.002, ((1, 1.0), (2, 1.02), (17, 1.2)), known)
    session = Session(target, template, settings, costs=costs)
    request = GenerationRequest(raw_prompt="abcd" * 32, max_tokens=2048)
    trace = Trace(("engine/generation/loop.py", "_round"), ())
    rounds: list[Counter[Place]] = []

    def reply() -> None:
        n_verified = 0
        for event in session.generate(request, Cancellation()):
            if isinstance(event, RoundFinished):
                n_verified = event.n_verified
            if isinstance(event, CacheChanged):  # ends a round
                if n_verified == N_VERIFIED:
                    rounds.append(Counter(trace.calls))
                trace.calls.clear()

    trace.run(reply)
    usual = sorted(rounds, key=Counter.total)[len(rounds) // 2]
    calls = Counter({place: n for place, n in usual.items() if place[0] != "engine/testing.py"})
    files: Counter[str] = Counter()
    for (file, name), n in calls.most_common():
        print(f"  {n:4} {file}:{name}")
        files[file] += n
    print(f"{calls.total()} calls in {len(files)} files, in the median of {len(rounds)} rounds")
    return int(calls.total() > MOST_CALLS or len(files) > MOST_ROUND_FILES)


COMMANDS = {"plan": plan, "round": one_round}


def main() -> None:
    """Run the command that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("options", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    sys.exit(COMMANDS[asked.what](asked))


if __name__ == "__main__":
    main()
