"""Does a cache kind that was chosen by one text keep the gates on texts that nobody measured?

Every text is measured by itself. For each of them, each budget and each other text: the kind is
chosen by the first alone, with the gates as they are set, and the figures of the second are held
against the same gates, without the headroom. A broken gate is a wrong choice. For comparison the
same is counted for the guess, the one order of types for all models, and without headroom.

`--chosen-by` takes the report of `kvchat cache-quality` as the text to choose by, as a user does,
and measures on the texts that it has not seen only what it chooses: a sixth of the work.

    python -m benchmarks.cache_policy MODEL.gguf... [--tokens 8200] [--keep FOLDER]
    python -m benchmarks.cache_policy MODEL.gguf --chosen-by REPORT.json --tokens 4100 --keep FOLDER
    python -m benchmarks.cache_policy --from FOLDER
"""

import argparse
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from app.console import console
from app.quality.measure import MeasureProgress
from app.quality.run import MeasurementRun
from engine.clock import Stopwatch
from engine.configuration import Configuration, KVTypes
from engine.memory.kv_cache import bits_of, is_whole
from engine.policy.choice import BudgetError, Wish, choose
from engine.policy.gates import Gates, readings
from engine.quality.laboratory import LaboratoryPlan, LaboratoryProgress
from engine.quality.records import Figure, Measurement, Report, Scores, read_report
from engine.quality.request import LaboratoryRequest
from engine.quality.texts import Text, own_texts

ROOT = Path(__file__).resolve().parent.parent
FIGURES = tuple(each.name for each in fields(Scores) if each.name != "n_tokens")
TEXTS: dict[str, tuple[str, ...]] = {
    "chats of kvchat": (),
    "documents of kvchat": (),
    "pages about it": ("docs/*.md", "README.md"),
    "engine in Python": ("engine/generation/*.py", "engine/cache/*.py"),
    "screen in Python": ("app/widgets/*.py", "app/screens/*.py"),
    "tests": ("tests/engine/generation/*.py", "tests/engine/planning/*.py"),
    "list of changes": ("CHANGELOG.md", "CONTRIBUTING.md"),
    "settings and styles": ("presets/*.toml", "themes/*.toml", "pyproject.toml", "app/styles/*"),
}
"""Eight texts of different sorts: two that travel with kvchat, and six of its checkout."""
KINDS = ("q8_0", "q5_1", "q4_0")
BUDGETS = (1.0, 0.6, 0.5, 0.4, 0.3)
"""Shares of the f16 cache."""
N_CTX = 2048
"""Longest document: a text of 8,000 tokens is then four, and the intervals say something."""
LEAST_TEXTS = 6
LETTERS = 8
"""Of a token, more than any of these texts has on average."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One choice by one text, held against another."""

    pair: KVTypes | None
    """None where nothing may be chosen within the budget."""
    broken: tuple[str, ...]
    """The gates that the other text breaks."""


def texts(n_letters: int) -> Iterator[Text]:
    """The texts, each joined to one, and their first letters."""
    own = own_texts()
    for name, patterns in TEXTS.items():
        if not patterns:
            kind = "chat" if name.startswith("chats") else "document"
            parts = [each.text for each in own if (each.kind == "chat") == (kind == "chat")]
        else:
            paths = [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]
            parts = [path.read_text("utf-8") for path in paths if path.is_file()]
            kind = "code" if "Python" in name or name == "tests" else "document"
        yield Text(name, kind, "\n\n".join(parts)[:n_letters])


def measure(model: Path, text: Text, n_tokens: int, path: Path, kinds: Sequence[KVTypes]) -> Report:
    """The figures of some kinds on one text; no questions and no rates.

    A run that was stopped goes on where it was, in the middle of the text.

    Args:
        model: The model's file.
        text: What is scored.
        n_tokens: So many of it.
        path: The report's file; what is left to do is done, which may be nothing.
        kinds: What is measured beside the reference and the control.
    """
    request = LaboratoryRequest(
        Configuration(model, N_CTX),
        LaboratoryPlan(tuple(kinds), takes_times=False),
        (text,),
        n_ctx=N_CTX,
        n_most=n_tokens,
    )
    with MeasurementRun(path) as run, MeasureProgress(console(stderr=True)) as progress:
        run.go_on(request)
        for event in run:
            if isinstance(event, LaboratoryProgress):
                progress.show(event)
    report = run.report
    assert report is not None
    return report


def size(pair: KVTypes) -> int:
    """Bytes of a cache of 1,024 elements for each token of the context."""
    return round(N_CTX * 1024 * sum(bits_of(pair)) / 8)


def chosen_by(report: Report | None, gates: Gates, share: float) -> KVTypes | None:
    """The kind that a budget and a report make; without rates it is the smallest that passes."""
    whole = size(KVTypes.parse("f16"))
    try:
        return choose(report, Wish(N_CTX, round(share * whole)), gates, size)[0].pair
    except BudgetError:
        return None


def broken_on(report: Report, pair: KVTypes, gates: Gates) -> tuple[str, ...]:
    """The gates that the values of a text break, its intervals left out."""
    found = report.find(pair)
    if found is None or is_whole(pair):
        return ()
    limits = replace(gates, headroom=1.0)
    control = None if report.control is None else _plain(report.control)
    held = readings(_plain(found), limits, reference=report.reference, control=control)
    return tuple(each.gate for each in held if not each.is_kept)


def outcomes(
    both: Iterable[tuple[Report, Report]], gates: Gates, *, guesses: bool = False
) -> list[Outcome]:
    """Every choice by one text under every budget, held against another text."""
    found = []
    for first, second in both:
        for share in BUDGETS:
            pair = chosen_by(None if guesses else first, gates, share)
            broken = () if pair is None else broken_on(second, pair, gates)
            found.append(Outcome(pair, broken))
    return found


def kinds_chosen(report: Report, gates: Gates) -> tuple[KVTypes, ...]:
    """What a report chooses under any budget, with headroom or without; a whole cache left out."""
    ways = (gates, replace(gates, headroom=1.0))
    pairs = (chosen_by(report, way, share) for way in ways for share in BUDGETS)
    return tuple(dict.fromkeys(pair for pair in pairs if pair and not is_whole(pair)))


def _plain(found: Measurement) -> Measurement:
    return replace(
        found,
        scores=_values(found.scores),
        by_text=tuple(replace(each, scores=_values(each.scores)) for each in found.by_text),
        by_position=tuple(replace(each, scores=_values(each.scores)) for each in found.by_position),
    )


def _values(scores: Scores) -> Scores:
    figures = {name: Figure(getattr(scores, name).value) for name in FIGURES}
    return replace(scores, **figures)  # type: ignore[arg-type]  # by name


def show(name: str, reports: Sequence[Report], gates: Gates, chooser: Report | None = None) -> int:
    """Print the counts of a model; the number of broken choices by figures.

    Args:
        name: The model's.
        reports: A report of each text.
        gates: What they are held against.
        chooser: Chooses for all of them; None lets each choose for the others.
    """
    print(f"\n{name}: {len(reports)} texts")
    for report in reports:
        rows = ", ".join(
            f"{each.kind} {each.scores.kl_mean.value:.4f}/{each.scores.same_top.value:.1%}"
            for each in report.candidates
        )
        print(f"  {report.texts[0].name:22} {report.n_tokens:6,} tokens  mean KL/top: {rows}")
    both = list(itertools.permutations(reports, 2))
    if chooser is not None:
        both = [(chooser, report) for report in reports]
    ways = [
        ("by figures", outcomes(both, gates)),
        ("without headroom", outcomes(both, replace(gates, headroom=1.0))),
    ]
    if chooser is None:  # what the guess takes was not measured on its texts
        ways.append(("by guess", outcomes(both, gates, guesses=True)))
    for way, found in ways:
        broken = [each for each in found if each.broken]
        packed = Counter(str(e.pair) for e in found if e.pair and not is_whole(e.pair))
        none = sum(each.pair is None for each in found)
        gates_broken = dict(Counter(gate for each in broken for gate in each.broken))
        print(
            f"  {way:17} {len(found)} trials, {len(broken)} broken {gates_broken or ''}; "
            f"chosen {dict(packed)}, nothing allowed {none}"
        )
    return sum(bool(each.broken) for each in ways[0][1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure or read the reports, and print the counts; 1 where a choice by figures broke."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--tokens", type=int, default=8200, help="tokens of each text")
    parser.add_argument("--texts", type=int, default=LEAST_TEXTS, help="how many of the eight")
    parser.add_argument(
        "--keep", type=Path, help="folder for the reports; the same again goes on where it stopped"
    )
    parser.add_argument("--chosen-by", type=Path, help="report to choose by; then one model")
    parser.add_argument("--from", dest="kept", type=Path, help="folder of kept reports")
    for each in fields(Gates):
        parser.add_argument(f"--{each.name.replace('_', '-')}", type=float, default=each.default)
    asked = parser.parse_args(arguments)
    gates = Gates(**{each.name: getattr(asked, each.name) for each in fields(Gates)})
    chooser = None if asked.chosen_by is None else read_report(asked.chosen_by)
    kinds = tuple(KVTypes.parse(name) for name in KINDS)
    chosen_from = texts(LETTERS * asked.tokens)
    if chooser is not None:
        kinds = kinds_chosen(chooser, gates)
        names = [model.name for model in asked.models]
        if not kinds or names not in ([], [chooser.subject.model]):
            parser.error(f"{asked.chosen_by} chooses {kinds or 'f16'} for {chooser.subject.model}")
        chosen_from = (text for text in chosen_from if TEXTS[text.name])  # its own were seen
    reports: dict[str, list[Report]] = {}
    if asked.kept is not None:
        for path in sorted(asked.kept.glob("*.json")):
            report = read_report(path)
            reports.setdefault(report.subject.model, []).append(report)
    measured = list(itertools.islice(chosen_from, asked.texts))
    with tempfile.TemporaryDirectory() as scratch:
        for model in asked.models:
            watch = Stopwatch()
            for number, text in enumerate(measured):
                path = (asked.keep or Path(scratch)) / f"{model.stem}-{number}.json"
                report = measure(model.resolve(), text, asked.tokens, path, kinds)
                reports.setdefault(model.name, []).append(report)
                print(f"{model.name}, {text.name}: {watch.total():.0f} s", file=sys.stderr)
    n_broken = sum(show(name, found, gates, chooser) for name, found in reports.items())
    few = [name for name, found in reports.items() if len(found) < LEAST_TEXTS]
    print(json.dumps({"broken": n_broken, "too_few_texts": few}))
    return int(bool(n_broken or few))


if __name__ == "__main__":
    sys.exit(main())
