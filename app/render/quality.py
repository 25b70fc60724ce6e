"""A measurement of cache kinds as lines: the table as far as it has come, and one kind in full."""

from collections.abc import Sequence

from app.quality.table import COST, MAIN, cost_row, main_row, no_verdict, number
from app.render.charts import GraphSymbols, bar
from app.render.lines import EMPTY, Line, Run, clipped, spread, wrapped
from app.sanitize import visible
from engine.policy.choice import Candidate
from engine.policy.sentence import TEXT_NAMES, sentence
from engine.quality.records import Answers, Measurement, Part, Report

COLUMNS = (*MAIN, *COST[1:])
"""In the order in which they stand."""
WEIGHT = (
    "K/V", "KL mean", "same top", "loss", "bytes/token", "p99.9", "deep", "needles", "perplexity",
    "problems", "p99", "tok/s", "95 %", "prefill", "peak", "median",
)  # fmt: skip
"""In the order in which they find room."""
GAP = 2
CONTROL_TITLE = "noise"
LABEL_WIDTH = 14
NUMBER_WIDTH = 9
MOST_BAR = 48
SIGNS = {True: Run("✓ ", "good"), False: Run("✗ ", "bad"), None: Run("  ")}


def quality_title(model: str, what: str, width: int) -> Line:
    """The screen's first line: the model, and how far its measurement is."""
    left = (Run(" cache types ", "strong"), Run(visible(model), "accent"))
    return spread(left, (Run(f"{visible(what)} ", "muted"),), width)


class QualityTable:
    """The rows of a report in the columns that a width has room for."""

    def __init__(self, report: Report, candidates: Sequence[Candidate]) -> None:
        """The table of a report.

        Args:
            report: As far as it has come.
            candidates: Its kinds as the gates judge them; none before there is text enough.
        """
        self.rows = report.measurements
        self._kept = {
            candidate.measured.kind: not candidate.objections
            for candidate in candidates
            if candidate.measured is not None
        }
        self._cells = [_cells(row) for row in self.rows]
        self._widths = {
            name: max(len(name), *(len(cells[name]) for cells in self._cells), 0)
            for name in COLUMNS
        }

    def head(self, width: int) -> Line:
        """The names of the columns."""
        names = self._shown(width)
        return clipped((Run("  "), *self._line({name: name for name in names}, names, "muted")),
                       width)  # fmt: skip

    def line(self, index: int, width: int) -> Line:
        """A row: its sign is whether it keeps the gates."""
        row = self.rows[index]
        sign = SIGNS[self._kept.get(row.kind) if row.role == "candidate" else None]
        style = "" if row.role == "candidate" else "muted"
        return clipped((sign, *self._line(self._cells[index], self._shown(width), style)), width)

    def _line(self, cells: dict[str, str], names: Sequence[str], style: str) -> Line:
        texts = []
        for name in names:
            room = self._widths[name]
            is_left = name == "K/V"
            texts.append(f"{cells[name]:<{room}}" if is_left else f"{cells[name]:>{room}}")
        return (Run((" " * GAP).join(texts), style),)

    def _shown(self, width: int) -> tuple[str, ...]:
        room, chosen = width - GAP, set()
        for name in WEIGHT:
            room -= self._widths[name] + GAP
            if room < -GAP:
                break
            chosen.add(name)
        return tuple(name for name in COLUMNS if name in chosen)


def _cells(row: Measurement) -> dict[str, str]:
    return {**dict(zip(COST, cost_row(row), strict=True)), **dict(zip(MAIN, main_row(row),
            strict=True))}  # fmt: skip


def kind_lines(
    report: Report,
    row: Measurement,
    candidate: Candidate | None,
    width: int,
    symbols: GraphSymbols,
) -> list[Line]:
    """What is known of one kind: a sentence, what the gates say, and KL by position and text."""
    lines: list[Line] = []
    if row.role == "candidate":
        lines += wrapped((Run(f"{sentence(report, row.kind)}."),), width)
    elif row.role == "control":
        text = (
            f"{row.kind} again in smaller batches: what it shows is noise, and no type causes it."
        )
        lines += wrapped((Run(text),), width)
    else:
        lines += wrapped((Run(f"{row.kind}: what the others are compared with."),), width)
    objections = () if candidate is None else candidate.objections
    lines += _objections(objections[:1], width)
    if row.role == "reference":
        return lines
    noise = report.control
    lines += _chart("KL by position, nats", row.by_position,
                    () if noise is None else noise.by_position, width, symbols)  # fmt: skip
    lines += _chart("KL by kind of text, nats", row.by_text,
                    () if noise is None else noise.by_text, width, symbols)  # fmt: skip
    lines += _needles(row.needle, width, symbols)
    rest = _objections(objections[1:], width)
    return (
        [*lines, EMPTY, (Run("other gates that it breaks", "heading-minor"),), *rest]
        if rest
        else lines
    )


def _objections(said: Sequence[str], width: int) -> list[Line]:
    return [
        line
        for objection in said
        for line in wrapped((Run("✗ ", "bad"), Run(objection, "muted")), width)
    ]


def _chart(
    title: str, parts: Sequence[Part], noise: Sequence[Part], width: int, symbols: GraphSymbols
) -> list[Line]:
    """Bars of the mean KL, the noise of the control under each; all of one scale."""
    if not parts:
        return []
    below = {part.name: part.scores.kl_mean.value for part in noise}
    most = max([part.scores.kl_mean.value for part in parts] + list(below.values()) + [1e-12])
    lines: list[Line] = [EMPTY, (Run(title, "heading-minor"),)]
    for part in parts:
        name = TEXT_NAMES.get(part.name, part.name)
        value = part.scores.kl_mean.value
        lines.append(_bar_line(name, value, value / most, width, symbols))
        if part.name in below:
            own = below[part.name]
            lines.append(_bar_line(CONTROL_TITLE, own, own / most, width, symbols, "muted"))
    return lines


def _bar_line(
    name: str, value: float, share: float, width: int, symbols: GraphSymbols, style: str = ""
) -> Line:
    room = min(max(width - LABEL_WIDTH - NUMBER_WIDTH - 2, 0), MOST_BAR)
    label = f"{name:>{LABEL_WIDTH}.{LABEL_WIDTH}} "
    drawn = bar(share, room, symbols)
    said = Run(f" {number(value)}", style)
    return clipped((Run(label, style or "muted"), *drawn, said), width)


def _needles(answers: Sequence[Answers], width: int, symbols: GraphSymbols) -> list[Line]:
    if not answers:
        return []
    lines: list[Line] = [EMPTY, (Run("needles found by depth", "heading-minor"),)]
    for each in answers:
        share = each.n_right / max(each.n_asked, 1)
        room = min(max(width - LABEL_WIDTH - NUMBER_WIDTH - 2, 0), MOST_BAR)
        count = Run(f" {each.n_right}/{each.n_asked}")
        label = Run(f"{each.name:>{LABEL_WIDTH}.{LABEL_WIDTH}} ", "muted")
        lines.append(clipped((label, *bar(share, room, symbols), count), width))
    return lines


def verdict_text(report: Report | None, kept: str) -> str:
    """The verdict in one sentence; before it, or without one, why there is none.

    Args:
        report: What was measured so far.
        kept: The sentence of the plan that was made of it; empty before.
    """
    if report is None or not report.measurements:
        return ""
    if not report.allows_verdict:
        return no_verdict(report)
    return f"{kept.rstrip('.')}." if kept else "The verdict comes with the last text."


def begin_lines(why_not: str | None, n_kinds: int, width: int) -> list[Line]:
    """What stands in place of the table before anything was measured."""
    if why_not is not None:
        return wrapped(
            (Run("✗ ", "bad"), Run(f"Nothing can be measured: {visible(why_not)}")), width
        )
    text = (
        f"Nothing was measured of this model yet. r measures {n_kinds} cache types on kvchat's own "
        "texts: code, chats, long documents and tool calls are decoded through each type beside "
        "f16, and compared token by token. That takes minutes; esc stops it and keeps what was "
        "measured, and r goes on with it. c measures on your own chats."
    )
    return wrapped((Run(text, "muted"),), width)
