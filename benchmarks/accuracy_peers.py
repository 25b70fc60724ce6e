"""Other estimators beside kvchat, as a section of the accuracy page."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from accuracy_comparison import MIB, Comparison, Row, comparison_of, device_comparisons_of, quantile

PEERS = {
    "gguf-parser": "gguf-parser 0.25.0 (gpustack/gguf-parser-go 8dc7a62), built with Go 1.27",
    "oldiron": "oldiron 0.1.0 from PyPI",
}
INTRODUCTION = """\
## Beside other estimators

The same files and configurations, asked of

{names}

Figures are totals without the overhead of process and driver: everything in main memory, and the
share of one stand-in GPU. A row that an estimator cannot express is not asked; one that it refuses
is counted. `lost` are the rows where kvchat is further off than the other by more than 1 MiB.
"""
NO_PEERS = """\
## Beside other estimators

Not compared in this run: `benchmarks/memory_peers.py` asks them.
"""


@dataclass(frozen=True)
class Beside:
    """One row, by kvchat and by another estimator, in bytes."""

    own: Comparison
    theirs: int

    @property
    def error(self) -> int:
        return self.theirs - self.own.truth["total"]

    @property
    def share(self) -> float:
        return self.error / max(self.own.truth["total"], 1)

    @property
    def is_lost(self) -> bool:
        return abs(self.own.error("total")) > abs(self.error) + MIB


def peer_section(rows: list[Row], answers: Path | None) -> list[str]:
    """The section; a sentence where nothing was asked."""
    if answers is None or not answers.exists():
        return [NO_PEERS]
    text = answers.read_text(encoding="utf-8").splitlines()
    said = {row["key"]: row["peers"] for row in map(json.loads, text)}
    names = [name for name in PEERS if any(name in peers for peers in said.values())]
    lines = [
        INTRODUCTION.format(names="\n".join(f"- {PEERS[name]}" for name in names)),
        "| estimator | where | rows | refused | error p50 % | p95 % | furthest low % | "
        "kvchat p50 % | p95 % | furthest low % | lost |",
        "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lost: list[str] = []
    for name in names:
        for where, n_gpus in (("main memory", 0), ("one GPU", 1)):
            found, n_refused = _besides(rows, said, name, n_gpus)
            if found:
                lines.append(_line(name, where, found, n_refused))
                lost += [_lost(name, where, one) for one in found if one.is_lost]
    return [*lines, "", f"Rows that kvchat loses: {len(lost) or 'none'}.", "", *lost, ""]


def _besides(
    rows: Iterable[Row], said: dict[str, dict[str, object]], name: str, n_gpus: int
) -> tuple[list[Beside], int]:
    found, n_refused = [], 0
    for row in rows:
        answer = said.get(str(row.get("key")), {}).get(name)
        if answer is None or row.get("n_gpus") != n_gpus:
            continue
        if not isinstance(answer, int):
            n_refused += 1
            continue
        found.append(Beside(_own(row), answer))
    return found, n_refused


def _own(row: Row) -> Comparison:
    if not row["n_gpus"]:
        return comparison_of(row)
    return next(c for c in device_comparisons_of(row) if c.device == "GPU 0")


def _line(name: str, where: str, found: list[Beside], n_refused: int) -> str:
    theirs = [one.share for one in found]
    own = [one.own.share("total") for one in found]
    cells = [name, where, str(len(found)), str(n_refused), *_spread(theirs), *_spread(own)]
    return f"| {' | '.join(cells)} | {sum(one.is_lost for one in found)} |"


def _spread(shares: list[float]) -> tuple[str, str, str]:
    sizes = [abs(share) for share in shares]
    return (
        f"{100 * median(sizes):.2f}",
        f"{100 * quantile(sizes, 0.95):.2f}",
        f"{100 * min(0.0, *shares):.1f}",
    )


def _lost(name: str, where: str, one: Beside) -> str:
    return (
        f"- {one.own.model}, {one.own.case} ({where}): kvchat "
        f"{100 * one.own.share('total'):+.2f} %, {name} {100 * one.share:+.2f} %"
    )
