"""What is wrong with the formulas, worst first, as text for whoever works on them."""

from pathlib import Path

from accuracy_comparison import (
    COMPUTE_GOALS,
    MIB,
    TOTAL_GOAL,
    Comparison,
    Row,
    comparisons,
    device_comparisons,
    refusal,
    refusals,
)

N_WORST = 60


def write_worst(rows: list[Row], path: Path) -> None:
    """Write what is wrong: refusals, then cache, state, weights, then the 60 worst rows."""
    found, placed = comparisons(rows), device_comparisons(rows)
    both, odd = refusals(rows)
    lines = [f"{len(rows)} rows, {len(found)} compared, {both} refused by both"]
    lines += [
        f"UNREADABLE {row['model']}: {row['unreadable']}" for row in rows if "unreadable" in row
    ]
    lines += [
        f"SKIPPED {row['model']} {row['case']}: {row['skipped']}"
        for row in rows
        if "skipped" in row
    ]
    lines += [f"ONLY ONE REFUSES: {refusal(row)}" for row in odd]
    for title, group, exact in (
        ("CPU", found, ("kv", "state", "weights")),
        ("STAND-IN GPUS, BY DEVICE", placed, ("weights", "memory")),
    ):
        lines.append(f"\n=== {title}")
        for term in exact:
            wrong = [c for c in group if not c.meets(term)]
            lines.append(f"\n{term.upper()}: {len(wrong)} of {len(group)} wrong")
            lines += [_line(c, term) for c in sorted(wrong, key=lambda c: -abs(c.error(term)))[:60]]
        for term in ("compute", "total"):
            wrong = [c for c in group if not c.meets(term)]
            lines.append(
                f"\n{term.upper()}: {len(wrong)} of {len(group)} beyond the goal; the worst"
            )
            lines += [
                _line(c, term) for c in sorted(group, key=lambda c: -_badness(c, term))[:N_WORST]
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _badness(c: Comparison, term: str) -> float:
    share, nbytes = COMPUTE_GOALS[c.kind] if term == "compute" else TOTAL_GOAL
    return abs(c.error(term)) / max(share * c.truth[term], nbytes)


def _line(c: Comparison, term: str) -> str:
    return (
        f"{c.model:40} {c.architecture:14} {c.kind:8} {c.case:30} {c.device:6} formula "
        f"{c.formula[term] / MIB:11.3f} llama.cpp {c.truth[term] / MIB:11.3f} MiB "
        f"{100 * c.share(term):+8.2f} %{' marked' if c.is_marked else ''}"
    )
