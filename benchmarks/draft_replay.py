"""`auto` beside every fixed draft length on recorded replies, at a machine's measured costs.

    ../.venv/bin/python draft_replay.py MODEL LINES [--curve two_cores|q4_k|gpu|kink]
        [--predictors suffix,lookup] [--sets grounded,chat] [--prompts 12] [--seeds 3] [--busy]
        [--page results/draft_lengths.md]

Greedy text does not depend on who drafts, so one plain reply to each prompt is enough to know what
any rule would have drafted, and how much of it was right. LINES keeps these replies; what is
missing is generated. The predictors and the rule are the real ones; what a batch takes is a curve
of `tests/support/speculation_simulator.py`, with the noise of a clock. Nothing else is timed, so a
busy machine gives the same table. `--busy` shakes and stalls that clock as other programs do.

`auto` answers as the first reply of a model (cold), and after other chats of the set (warm).
"""

import argparse
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import mean, median
from zlib import crc32

from common import ask, load
from speed_peers.catalogue import Question
from speed_peers.own import make_questions

from engine.backends.base import common_prefix
from engine.configuration import MAX_DRAFT, PredictorName, SamplingSettings, SpeculationSettings
from engine.experiment.arm import Arm, parse_arm
from engine.experiment.prompts import draw, read_set
from engine.requests import GenerationRequest, Message
from engine.speculation.auto import AutoController
from engine.speculation.costs import Costs
from engine.speculation.drafter import Drafter
from engine.speculation.predictor_pool import look_up, make_controller, suffixes
from engine.speculation.predictors.base import DraftToken
from tests.support import speculation_simulator as sim
from tests.support.rounds import a_round

MARKS = (64, 128, 512)
"""Lengths of replies, in tokens."""
FIXED = (1, 2, 3, 4, 6, 8)
PLAIN, COLD, WARM = "plain", "cold", "warm"
OFF = SpeculationSettings(predictor=PredictorName.OFF)

Speeds = Mapping[str, Mapping[int, float]]
"""Of one prompt: by rule and length of the reply, in any unit that all rules share."""
CURVES = {"two_cores": sim.TWO_CORES, "q4_k": sim.Q4_K, "gpu": sim.GPU, "kink": sim.KINK}
ASKING = {"two_cores": sim.LOOKUP}
"""What a predictor takes, in plain steps; beside a larger model a tenth of it."""
CALM, BUSY = (0.05, 0.002), (0.15, 0.02)
"""Noise of the clock, and share of its readings that stall by five plain steps."""


@dataclass(frozen=True, slots=True)
class Line:
    """A prompt and its plain greedy reply, as token ids."""

    name: str
    prompt: tuple[int, ...]
    reply: tuple[int, ...]


def main() -> None:
    options = parsed()
    lines = []
    for predictor in options.predictors.split(","):
        title = f"{options.curve}{', busy' if options.busy else ''}, {predictor}"
        for row in table(title, Replay(options, predictor).sets()):
            print(row, flush=True)
            lines.append(row)
    if options.page:
        name = f"replay {options.curve}{' busy' if options.busy else ''}"
        replace_part(options.page, name, lines)


class Proposals:
    """A predictor's guesses at every place of a line, made once for all rules."""

    def __init__(self, line: Line, rule: SpeculationSettings) -> None:
        reader = (look_up if rule.predictor == "lookup" else suffixes)(rule)
        self.name = reader.name
        self.was_asked = False
        self._guesses: list[tuple[DraftToken, ...]] = []
        reader.reset((*line.prompt, line.reply[0]))
        for token in line.reply[1:]:
            self._guesses.append(tuple(islice(reader.propose(), MAX_DRAFT)))
            reader.commit((token,))
        self._at = 0

    def reset(self, history: Sequence[int]) -> None:  # noqa: ARG002  the line is known
        self._at = 0

    def commit(self, tokens: Sequence[int]) -> None:
        self._at += len(tokens)
        self.was_asked = False

    def propose(self) -> Iterator[DraftToken]:
        self.was_asked = True
        return iter(self._guesses[self._at])


class Replay:
    """Recorded lines under every rule."""

    def __init__(self, options: argparse.Namespace, predictor: str) -> None:
        self._options = options
        self._proposals: dict[str, Proposals] = {}
        self._curve = CURVES[options.curve]
        self._source = ASKING.get(options.curve, sim.CHEAP_LOOKUP)
        self._auto = settings(parse_arm(f"{predictor}:auto"))
        self._fixed = {
            str(length): settings(parse_arm(f"{predictor}:fixed:{length}")) for length in FIXED
        }

    def sets(self) -> Iterator[tuple[str, list[Speeds]]]:
        """The speeds of each line, in tokens for a plain step, set by set."""
        for name in self._options.sets.split(","):
            lines = recorded(self._options, name)
            self._proposals = {line.name: Proposals(line, self._auto) for line in lines}
            speeds: list[dict[str, dict[int, float]]] = [
                {PLAIN: dict.fromkeys(MARKS, 1.0)} for _ in lines
            ]
            for each, line in zip(speeds, lines, strict=True):
                for length, rule in self._fixed.items():
                    each[length] = self._play(line, rule, AutoController(), seed=0)
            for mode, replies in ((COLD, self._cold(lines)), (WARM, self._warm(lines))):
                for each, found in zip(speeds, replies, strict=True):
                    each[mode] = found
            yield Path(name).stem, list(speeds)

    def _cold(self, lines: Sequence[Line]) -> list[dict[int, float]]:
        return [
            averaged(self._first(line, seed)[0] for seed in range(self._options.seeds))
            for line in lines
        ]

    def _warm(self, lines: Sequence[Line]) -> list[dict[int, float]]:
        found: list[list[dict[int, float]]] = [[] for _ in lines]
        for seed in range(self._options.seeds):
            order = random.Random(seed).sample(range(len(lines)), len(lines))
            _, first = self._first(lines[order[-1]], seed)
            controller = AutoController(Costs(first.costs.profile()))
            for index in order:
                found[index].append(self._play(lines[index], self._auto, controller, seed=seed))
        return [averaged(each) for each in found]

    def _first(self, line: Line, seed: int) -> tuple[dict[int, float], AutoController]:
        controller = AutoController()
        return self._play(line, self._auto, controller, seed=seed), controller

    def _world(self, seed: int) -> sim.World:
        noise, stalls = BUSY if self._options.busy else CALM
        text = sim.steady(0.0)
        return sim.World(self._curve, text, self._source, noise=noise, stalls=stalls, seed=seed)

    def _play(
        self, line: Line, rule: SpeculationSettings, auto: AutoController, *, seed: int
    ) -> dict[int, float]:
        """Tokens for a plain step, by the length of the reply; true work, no noise."""
        return speeds_at(
            self._rounds(line, rule, auto, self._world(crc32(f"{line.name} {seed}".encode())))
        )

    def _rounds(
        self, line: Line, rule: SpeculationSettings, auto: AutoController, world: sim.World
    ) -> Iterator[tuple[int, float]]:
        source = self._proposals[line.name]
        drafter = Drafter([source], make_controller(rule, auto), rule)
        drafter.reset(line.prompt)
        at = 1
        while at < len(line.reply):
            draft = drafter.draft(min(MAX_DRAFT, len(line.reply) - at - 1))
            was_asked = source.was_asked
            n_right = common_prefix(draft.tokens, line.reply[at:])
            committed = line.reply[at : at + n_right + 1]
            drafting = world.source.fixed * was_asked + world.source.step * draft.n_drafted
            verifying = world.verify_steps(1 + len(draft.tokens))
            verify_s = world.clock(verifying, at)
            auto.costs.rows.add(1 + len(draft.tokens), verify_s)
            outcome = a_round(
                n_verified=len(draft.tokens),
                n_examined=min(n_right + 1, len(draft.tokens)),
                n_accepted=n_right,
                n_emitted=len(committed),
                n_drafted=draft.n_drafted,
                draft_s=world.clock(drafting, at) if was_asked else 0.0,
                verify_s=verify_s,
            )
            drafter.observe(outcome, committed)
            at += len(committed)
            yield len(committed), drafting + verifying


def averaged(speeds: Iterator[dict[int, float]] | Sequence[dict[int, float]]) -> dict[int, float]:
    """The mean over seeds at each length that the reply has."""
    runs = list(speeds)
    return {mark: mean(run[mark] for run in runs) for mark in runs[0]}


def recorded(options: argparse.Namespace, name: str) -> list[Line]:
    """The lines of a set; plain replies that the file does not have are generated and added."""
    prompts = draw(read_set(name), options.prompts, seed=options.seed)
    questions, _ = make_questions(options.model.resolve(), prompts)
    known = replies_of(options.lines)
    missing = [each for each in questions if each.name not in known]
    if missing:
        record(options, missing)
        known = replies_of(options.lines)
    return [Line(each.name, each.tokens, known[each.name]) for each in questions]


def record(options: argparse.Namespace, questions: Sequence[Question]) -> None:
    """Generate plain greedy replies, and add each to the file at once."""
    engine = load(options.model, n_ctx=4096, n_threads=options.threads, speculation=OFF)
    with options.lines.open("a", encoding="utf-8") as out:
        for each in questions:
            request = GenerationRequest(
                messages=(Message("user", each.text),),
                sampling=SamplingSettings(temperature=0.0),
                max_tokens=max(MARKS),
                seed=options.seed,
            )
            tokens = list(ask(engine, request).token_ids)
            out.write(json.dumps({"name": each.name, "tokens": tokens}) + "\n")
            out.flush()
    engine.client.close()


def replies_of(path: Path) -> dict[str, tuple[int, ...]]:
    """The recorded replies by the name of their prompt."""
    if not path.exists():
        return {}
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {row["name"]: tuple(row["tokens"]) for row in rows}


def speeds_at(rounds: Iterable[tuple[int, float]]) -> dict[int, float]:
    """Tokens in a unit of time when a reply had each of `MARKS` tokens, as far as it got.

    A reply that ended earlier counts for the lengths that it has and for the next one.
    """
    n_tokens, elapsed, found, marks = 0, 0.0, {}, list(MARKS)
    for n_emitted, taken in rounds:
        n_tokens, elapsed = n_tokens + n_emitted, elapsed + taken
        while marks and n_tokens >= marks[0] - 1:
            found[marks.pop(0)] = n_tokens / elapsed
    if marks and n_tokens > max([0, *found]):
        found[marks[0]] = n_tokens / elapsed
    return found


def table(title: str, sets: Iterator[tuple[str, list[Speeds]]]) -> Iterator[str]:
    """The lines of a table, as its sets are measured."""
    fixed = " | ".join(map(str, FIXED))
    yield f"| {title} | tokens | {fixed} | best | cold | warm | cold / best | warm / best |"
    yield f"|---|--:|{'--:|' * (len(FIXED) + 5)}"
    for name, prompts in sets:
        for mark in MARKS:
            having = [each for each in prompts if all(mark in speeds for speeds in each.values())]
            if having:
                cells = " | ".join(row(having, mark))
                yield f"| {name}, {len(having)} prompts | {mark} | {cells} |"
    yield ""


def row(prompts: Sequence[Speeds], mark: int) -> Iterator[str]:
    """Gains of the fixed lengths and of `auto` over plain, and of `auto` over the best length."""
    gains = {
        str(length): median(gain(each, str(length), PLAIN, mark) for each in prompts)
        for length in FIXED
    }
    yield from (f"{each:.2f}" for each in gains.values())
    best = max(gains, key=lambda name: gains[name])
    best = best if gains[best] > 1.0 else PLAIN
    yield best
    yield from (
        f"{median(gain(each, name, PLAIN, mark) for each in prompts):.2f}" for name in (COLD, WARM)
    )
    yield from (
        f"{median(gain(each, name, best, mark) for each in prompts):.3f}" for name in (COLD, WARM)
    )


def gain(speeds: Speeds, name: str, over: str, mark: int) -> float:
    return speeds[name][mark] / speeds[over][mark]


def settings(arm: Arm) -> SpeculationSettings:
    return arm.of(OFF)


def replace_part(page: Path, name: str, lines: Sequence[str]) -> None:
    """Write tables into a page, between the marks of their model."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    before, _, rest = text.partition(start)
    _, _, after = rest.partition(end)
    page.write_text(before + start + "\n".join(lines) + "\n" + end + after, encoding="utf-8")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("lines", type=Path, help="JSONL file of recorded replies")
    parser.add_argument("--curve", choices=CURVES, default="q4_k")
    parser.add_argument("--predictors", default="suffix,lookup")
    parser.add_argument("--sets", default="grounded,chat", help="names or JSONL files")
    parser.add_argument("--prompts", type=int, default=12, help="of each set")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--page", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
