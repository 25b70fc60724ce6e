"""`auto` beside plain decoding and every fixed draft length, in replies of 64, 128 and 512 tokens.

    ../.venv/bin/python draft_lengths.py MODEL [--predictors suffix,lookup] [--prompts 4]
        [--sets grounded,chat] [--tokens 512] [--threads 2] [--control 4]
        [--page ../docs/draft_lengths.md]

For each prompt every rule answers once, one right after the other, in an order that turns with the
prompt; shorter replies are the first tokens of the long one, since no rule knows where it ends.
Speeds are those of the rounds behind the first token, over the plain speed of the same prompt.
`auto` answers twice: *cold*, as the first reply of a model that was just loaded and has no kept
costs, and *warm*, in a session that saw the prompts before. The best fixed length is the one with
the largest median over the prompts, chosen afterwards; no drafts at all may be it.

Plain steps on a shared machine are a quarter slower in one reply than in the next, which is more
than the rules differ by. So each round counts what rounds with as many rows took in the median of
all replies to that prompt, and the drafting that it really took: the decisions are those of a real
clock, their price is not that of the moment. A second table has the clock's own figures.

All replies to a prompt say what the first plain one said: batches round unlike single steps, a
near-tie falls the other way, and the rest is another text, with more or less to draft in it than
the rules are about. So the logits of each row are made to choose the recorded token; nothing else
is changed. What a set says is the median of paired ratios. `draft_replay.py` plays the same on
recorded lines at a simulated machine's costs.

The best of six that were measured is partly the luckiest. `--control 4` lets every rule be the same
length: what `cold / best` says then is what chance alone takes from `auto`.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

from speed_peers.machine import describe_machine

from app.bench.policies import Policy, parse_policy
from app.bench.prompt_sets import BenchPrompt, choose, read_set
from engine.backends.base import Forward
from engine.backends.llama_cpp.sequence import LlamaCppSequence
from engine.configuration import Configuration, PredictorName, SamplingSettings, SpeculationSettings
from engine.events import Finished, RoundFinished
from engine.generation.session import Session
from engine.load import load_session
from engine.requests import Cancellation, GenerationRequest, Message

MARKS = (64, 128, 512)
"""Lengths of replies, in tokens."""
FIXED = (1, 2, 3, 4, 6, 8)
PLAIN, COLD, WARM = "plain", "cold", "warm"
N_CTX = 4096
CHOSEN = 1e9
"""A logit that no other reaches."""
OFF = SpeculationSettings(predictor=PredictorName.OFF)
WARM_UP = BenchPrompt("warm-up", "warm-up", "Write the numbers from one to forty, each twice.")

Speeds = Mapping[str, Mapping[int, float]]
"""Of one prompt: by rule and length of the reply, in any unit that all rules share."""
Replies = Mapping[str, Sequence[RoundFinished]]
"""The rounds of one prompt's replies behind their first tokens, by rule."""


def main() -> None:
    options = parsed()
    machine = describe_machine()
    lines = [f"{machine['processor']}, {options.threads} threads, {machine['date']}.", ""]
    of_control = f", all fixed:{options.control}" if options.control else ""
    for predictor in options.predictors.split(","):
        sets = list(Timing(options, predictor).sets())
        title = f"{options.model.stem}, {predictor}{of_control}"
        for name, speeds_of in ((title, typical_speeds), (f"{title}, by the clock", clock_speeds)):
            measured = ((each, [speeds_of(replies) for replies in found]) for each, found in sets)
            for line in table(name, measured):
                print(line, flush=True)
                lines.append(line)
    if options.page:
        what = (options.model.stem, options.predictors, options.sets, str(options.tokens))
        what += (f"control {options.control}",) if options.control else ()
        replace_part(options.page, " ".join(what), lines)


@dataclass(frozen=True, slots=True)
class Told:
    """A reply with the prompt before it, and its rounds behind the first token."""

    token_ids: tuple[int, ...]
    rounds: Sequence[RoundFinished]


class Line:
    """The tokens of a prompt and of the reply that every rule is to make."""

    def __init__(self) -> None:
        self.tokens: tuple[int, ...] = ()

    @contextmanager
    def is_said(self) -> Iterator[None]:
        """Meanwhile every row of logits chooses the token of the line that follows it."""
        verify = LlamaCppSequence.verify

        def retold(
            sequence: LlamaCppSequence, tokens: Sequence[int], *, unread: Sequence[int] = ()
        ) -> Forward:
            forward = verify(sequence, tokens, unread=unread)
            start = len(sequence.tokens) - len(tokens) + 1
            for row, token in zip(forward.logits, self.tokens[start:], strict=False):
                row[token] = CHOSEN
            return forward

        with patch.object(LlamaCppSequence, "verify", retold):
            yield


class Timing:
    """Replies of two sessions: one that is loaded anew for each prompt, and one that stays."""

    def __init__(self, options: argparse.Namespace, predictor: str) -> None:
        self._options = options
        self._configuration = Configuration(
            options.model.resolve(), n_ctx=N_CTX, n_threads=options.threads
        )
        same = options.control
        self._auto = settings(parse_policy(f"{predictor}:{f'fixed:{same}' if same else 'auto'}"))
        self._rules = {
            str(length): settings(parse_policy(f"{predictor}:fixed:{same or length}"))
            for length in FIXED
        }
        self._line = Line()

    def sets(self) -> Iterator[tuple[str, list[Replies]]]:
        """The replies to each prompt, set by set."""
        options = self._options
        with self._line.is_said(), closing(self._load()) as kept:
            self._ask(kept, WARM_UP, self._auto)
            for name in options.sets.split(","):
                prompts = choose(read_set(name), options.prompts, seed=options.seed)
                yield (
                    Path(name).stem,
                    [self._replies(kept, each, n) for n, each in enumerate(prompts)],
                )

    def _load(self) -> Session:
        return load_session(self._configuration).session

    def _replies(self, kept: Session, prompt: BenchPrompt, turn: int) -> Replies:
        self._line.tokens = ()
        self._line.tokens = self._ask(kept, prompt, OFF).token_ids
        with closing(self._load()) as fresh:
            runs = [(COLD, fresh, self._auto), (WARM, kept, self._auto), (PLAIN, kept, OFF)]
            runs += [(name, kept, rule) for name, rule in self._rules.items()]
            start = turn * len(runs) // 2 % len(runs)
            return {
                name: self._ask(session, prompt, rule).rounds
                for name, session, rule in (*runs[start:], *runs[:start])
            }

    def _ask(self, session: Session, prompt: BenchPrompt, rule: SpeculationSettings) -> Told:
        request = GenerationRequest(
            messages=(Message("user", prompt.text),),
            sampling=SamplingSettings(temperature=0.0),
            max_tokens=self._options.tokens,
            seed=self._options.seed,
        )
        session.set_speculation(rule)
        rounds = []
        for event in session.generate(request, Cancellation()):
            match event:
                case RoundFinished():
                    rounds.append(event)
                case Finished():
                    said = (*session.prompt_tokens(request.messages), *event.token_ids)
        return Told(said, rounds[1:])


def clock_speeds(replies: Replies) -> Speeds:
    return {
        rule: speeds_at((each.n_emitted, each.elapsed_s) for each in rounds)
        for rule, rounds in replies.items()
    }


def typical_speeds(replies: Replies) -> Speeds:
    """Speeds where rounds of as many rows take the same time, apart from their drafting."""
    times: dict[int, list[float]] = {}
    for each in (one for rounds in replies.values() for one in rounds):
        times.setdefault(each.n_verified, []).append(each.elapsed_s - each.draft_s)
    typical = {n_verified: median(found) for n_verified, found in times.items()}
    return {
        rule: speeds_at((one.n_emitted, typical[one.n_verified] + one.draft_s) for one in rounds)
        for rule, rounds in replies.items()
    }


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


def settings(policy: Policy) -> SpeculationSettings:
    return policy.settings(replace(OFF, predictor=policy.predictor))


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
    parser.add_argument("--predictors", default="suffix,lookup")
    parser.add_argument("--sets", default="grounded,chat", help="names or JSONL files")
    parser.add_argument("--prompts", type=int, default=4, help="of each set")
    parser.add_argument("--tokens", type=int, default=max(MARKS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--control", type=int, metavar="LENGTH", help="this fixed length in place of every rule"
    )
    parser.add_argument("--page", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
