"""Planned numbers beside those of a server's log, on standard output."""

from dataclasses import asdict
from pathlib import Path

from app.cli.console import Part, say, tell
from app.format import nbytes
from engine.memory.server_log import Compared, compare_log, read_server_log, settings_that_differ
from engine.planning.planner import Plan

SHARE_SHOWN = 0.01
"""Differences below this share of the measured bytes are not coloured."""


def print_comparison(plan: Plan, path: Path) -> None:
    """Print each term of each device, planned and measured.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
    """
    log = read_server_log(path)
    rows = compare_log(plan.estimate, log)
    for note in settings_that_differ(plan.estimate, log):
        say((f"{note}: the numbers are of two configurations", "yellow"))
    width = max((len(row.device) for row in rows), default=6)
    say(f"{'':{width}}  {'':12} {'planned':>12} {'measured':>12} {'planned too much':>17}")
    for row in rows:
        say(*_line(row, width))
    say(
        *_line(
            Compared(
                "all",
                "total",
                sum(row.planned_bytes for row in rows),
                sum(row.measured_bytes for row in rows),
            ),
            width,
        )
    )
    if any(buffer.device.endswith("_Mapped") for buffer in log.buffers):
        say("Weights in main memory are measured as the part of the file that is mapped.")


def comparison_json(plan: Plan, path: Path) -> list[dict[str, str | int]]:
    """Give each term of each device, planned and measured, as plain values.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
    """
    return [asdict(row) for row in compare_log(plan.estimate, read_server_log(path))]


def learn(plan: Plan, path: Path) -> None:
    """Keep what a log says about the cards, and say on standard error what it was.

    Raises:
        LogError: the log cannot be read, or says nothing about memory.
        CalibrationError: it says nothing about a card, or the file cannot be kept.
    """
    from app.paths import calibration_path
    from engine.planning.measured import learn_from_log

    for name, found in learn_from_log(plan, path, calibration_path()).items():
        factor = f", graphs times {found.compute_factor:g}" if found.compute_factor else ""
        tell(f"{name}: {nbytes(found.overhead_bytes)} beyond buffers{factor}")
    tell(f"kept in {calibration_path()}")


def _line(row: Compared, width: int) -> tuple[Part, ...]:
    share = row.difference_bytes / row.measured_bytes if row.measured_bytes else 1.0
    text = f"{share:+.1%}" if row.measured_bytes else "not in the log"
    color = "" if abs(share) < SHARE_SHOWN else "yellow" if share > 0 else "red"
    numbers = f"{nbytes(row.planned_bytes):>12} {nbytes(row.measured_bytes):>12}"
    return f"{row.device:{width}}  {row.kind:12} {numbers} ", (f"{text:>17}", color)
