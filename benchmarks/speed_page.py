"""Writes results/speed.md from what `peers.py` measured; the page is never edited by hand.

    ../.venv/bin/python speed_page.py peers.jsonl [more.jsonl] [--page results/speed.md]

Several files are several measurements, each with a section of its own: other models, a temperature.
"""

import argparse
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from speed_peers.catalogue import KVCHAT
from speed_peers.judge import Row, Verdict, n_loops, row_of, verdict_of
from speed_peers.records import Head, PeerError, Run, read_results

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
HEAD = """\
# Speed beside other programs

How fast kvchat decodes with speculation, beside what llama-server, llama-cpp-python,
node-llama-cpp and transformers offer for the same: the same prompts as the same token ids, the same
model file, the same threads. This page is written by `benchmarks/speed_page.py` from what
`benchmarks/peers.py` measured.
"""
READING = """\
## How to read it

- **Speed** is decoded tokens over the time from the first token to the last, without the prefill.
  llama-server's is what it reports itself; the libraries are timed in their own process, so no
  transport counts. kvchat's spans the whole decoding as its screen shows it, the first token too.
- **Ratios** are taken prompt by prompt within a pair, so that a machine that slows down in between
  does not count; the table has their median. 1.00 is kvchat's plain decoding. In brackets
  is the 99 % interval of the median (ranks counted from both ends).
- **Same text** counts replies with the very tokens of the same program's plain decoding, and for
  that one itself, with those of kvchat's. A batch of several rows is summed in another order than a
  single row, so a near tie may fall the other way in every program here. Programs also
  cut a prompt into other batches, and transformers computes with other numbers, so that two plain
  texts may part, too.
- **Accepted** is the share of drafted tokens that the model confirmed, if the program reports it;
  **per pass** is how many tokens a pass through the model brought.
- Modes with two numbers (4/4) look for runs of up to the first length and draft the second, which
  suits processors; the others are the program's defaults, most of which draft long and suit GPUs.
- The best peer configuration is chosen in hindsight for each set, which nobody could beforehand;
  the plain modes are among the configurations.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--auto", default=f"{KVCHAT} suffix:auto", help="kvchat's side")
    options = parser.parse_args()
    try:
        measured = [read_results(path) for path in options.results]
    except (PeerError, OSError) as error:
        sys.exit(str(error))
    options.page.write_text(page_of(measured, options.auto), encoding="utf-8")


def page_of(measured: Sequence[tuple[Head, Sequence[Run]]], auto: str) -> str:
    """The whole page."""
    sections = [HEAD]
    for head, runs in measured:
        sections.append("\n".join(section_of(head, runs, auto)))
    return "\n".join([*sections, READING])


def section_of(head: Head, runs: Sequence[Run], auto: str) -> Iterator[str]:
    """The lines of one measurement."""
    settings = head.settings
    configurations = [str(each["key"]) for each in head.configurations]
    with_draft = f" with {settings['draft']} as draft" if settings["draft"] else ""
    chosen = "greedy" if not settings["temperature"] else f"temperature {settings['temperature']}"
    yield f"## {settings['model']}{with_draft}, {chosen}\n"
    yield from verdict_lines(head, runs, configurations, auto)
    for set_name in sets_of(runs):
        yield from set_lines(set_name, runs, configurations)
    yield from how_lines(head)


def sets_of(runs: Sequence[Run]) -> list[str]:
    """The names of the sets, in the order in which they were run."""
    return list(dict.fromkeys(run.set_name for run in runs))


def verdict_lines(
    head: Head, runs: Sequence[Run], configurations: Sequence[str], auto: str
) -> Iterator[str]:
    """kvchat's automatic rule against the best peer, set by set and over all."""
    names = sets_of(runs)
    every = [verdict_of(runs, name, configurations, auto) for name in names]
    no_loops = [verdict_of(runs, name, configurations, auto, without_loops=True) for name in names]
    yield f"`{auto}` against the best peer configuration of each set:\n"
    yield (
        "| set | best peer configuration | over kvchat plain | kvchat auto over plain | "
        "auto over best peer | without looping replies |"
    )
    yield "|---|---|--:|--:|--:|--:|"
    for name, verdict, rest in zip(names, every, no_loops, strict=True):
        if verdict is None:
            yield f"| {name} | no speeds yet | | | | |"
            continue
        yield (
            f"| {name} | {verdict.best} | {number(verdict.best_to_plain)} | "
            f"{number(verdict.auto_to_plain)} | "
            f"{bold(verdict.auto_to_best)}{span(verdict)} | "
            f"{number(rest and rest.auto_to_best)} |"
        )
    yield (f"| median | | | | {bold(median_of(every))} | {number(median_of(no_loops))} |\n")
    counts = ", ".join(f"{n_loops(runs, name)} in {name}" for name in names)
    yield (
        f"{n_prompts_of(head)} prompts a set by seed {head.settings['seed']}, "
        f"{head.settings['tokens']} tokens. Replies that end in a loop, where every "
        f"look-up is at its best: {counts}.\n"
    )


def bold(value: float | None) -> str:
    """A number that stands out, empty where there is none."""
    return "" if value is None else f"**{number(value)}**"


def span(verdict: Verdict) -> str:
    """The interval of a verdict after its median, nothing where there is none."""
    if verdict.interval is None:
        return ""
    low, high = verdict.interval
    return f" ({number(low)} to {number(high)})"


def n_prompts_of(head: Head) -> object:
    """The number of prompts in words for the page."""
    return head.settings["prompts"] or "All"


def median_of(verdicts: Sequence[Verdict | None]) -> float | None:
    """The median over sets, None where a set has no verdict."""
    found = [verdict.auto_to_best for verdict in verdicts if verdict is not None]
    return statistics.median(found) if found and len(found) == len(verdicts) else None


def set_lines(set_name: str, runs: Sequence[Run], configurations: Sequence[str]) -> Iterator[str]:
    """The table of one set."""
    yield f"### {set_name}\n"
    yield (
        "| configuration | over kvchat plain | over its own plain | same text | accepted | "
        "per pass | tok/s | prompts |"
    )
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    notes = []
    for configuration in configurations:
        row = row_of(runs, set_name, configuration)
        yield row_line(row)
        notes += [f"- {configuration}: {without_folders(error)}" for error in row.errors]
    yield ""
    if notes:
        yield "\n".join([*notes, ""])


def row_line(row: Row) -> str:
    """One line of a set's table."""
    if not row.n_prompts:
        return f"| {row.configuration} | no speed | | | | | | 0 |"
    same = f"{row.n_same} of {row.n_replies}"
    accepted = "" if row.acceptance is None else f"{row.acceptance:.0%}".replace("%", " %")
    return (
        f"| {row.configuration} | {number(row.to_kvchat_plain)} | {number(row.to_own_plain)} | "
        f"{same} | {accepted} | {number(row.tokens_per_round)} | "
        f"{number(row.tokens_per_second, digits=1)} | {row.n_prompts} |"
    )


def how_lines(head: Head) -> Iterator[str]:
    """Machine, versions and commands."""
    yield "### Machine, versions, commands\n"
    yield f"{'; '.join(head.machine.values())}; {head.settings['threads']} threads, "
    yield f"a context of {head.settings['ctx']} tokens.\n"
    yield "| program | versions |"
    yield "|---|---|"
    for peer, versions in head.peers.items():
        if "refused" in versions:
            yield f"| {peer} | did not run: {without_folders(versions['refused'])} |"
        else:
            yield f"| {peer} | {', '.join(f'{name} {value}' for name, value in versions.items())} |"
    yield ""
    yield "What the modes of llama-server are started with:\n"
    for each in head.configurations:
        settings = each["settings"]
        assert isinstance(settings, dict)
        if arguments := settings.get("arguments"):
            yield f"- {each['name']}: `{' '.join(map(str, arguments))}`"
    yield f"\nMeasured with `{head.command}`.\n"


def without_folders(text: str) -> str:
    """A message with the names of files alone: where they lay is of one machine."""
    return re.sub(r"(?<![\w.:])(?:/[\w.+-]+)+/(?=[\w.+-])", "", text)


def number(value: float | None, *, digits: int = 2) -> str:
    """A number for a cell, empty where there is none."""
    return "" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
