"""What the planner lets choose from: models, goals, presets, exports."""

from textwrap import wrap

from app import format as fmt
from app.render.lines import EMPTY, Line, Run, clipped, hanging, padded, spread, width_of
from app.render.plan import VERDICT_SIGNS, speed_text, verdict_line
from app.sanitize import one_line, visible
from engine.configuration import Configuration
from engine.model.architecture import Model
from engine.model.ollama import model_name
from engine.planning.fit import SearchResult, configuration_rows
from engine.planning.models import ModelOption
from engine.planning.planner import Plan
from engine.planning.verdict import FitVerdict
from engine.presets.library import PresetEntry

WORDS = {FitVerdict.FITS: "fits", FitVerdict.TIGHT: "tight", FitVerdict.NO: "no"}
LEGEND = "✓ fits · ! tight · ◐ partly in RAM · ✗ no · ≤ at most · ~ about"
SPILLS = "partly"
"""Verdict of a model that needs RAM beside the GPU."""
NEED_WIDTH = 28
NAME_WIDTH = 26
SPEED_WIDTH = 15
VERDICT_WIDTH = 9
SIZE_WIDTH = 9
WITH_SPEED = NAME_WIDTH + SPEED_WIDTH + VERDICT_WIDTH + SIZE_WIDTH + 8
"""Cells from which a row has room for tokens per second; what is free is left out then."""
WIDE = NAME_WIDTH + SPEED_WIDTH + NEED_WIDTH + 13
"""Cells from which it has room for what is free, too."""


def model_option_line(offer: ModelOption, width: int, *, is_now: bool) -> Line:
    """One model: `✓ fits   needs 4.9 GiB of 12 GiB`, or what is wrong with it."""
    marker = Run("• " if is_now else "  ", "accent")
    name = Run(visible(offer.name), "strong" if not offer.problem else "muted")
    if offer.problem:
        return clipped((marker, name, Run(f"  {visible(offer.problem)}", "bad")), width)
    has_speed = width >= WITH_SPEED
    right = () if offer.verdict is None else _need(offer, is_short=has_speed and width < WIDE)
    if has_speed:
        right = (*_speed(offer), *right)
    left = padded((marker, name), NAME_WIDTH)
    room = width - width_of(right) - width_of(left) - 3
    return spread((*left, Run(f"  {_facts(offer, room)}", "muted")), right, width)


def _facts(offer: ModelOption, room: int) -> str:
    """As many facts as have room."""
    text = ""
    for fact in filter(None, map(visible, offer.facts)):
        longer = f"{text} · {fact}" if text else fact
        if len(longer) > room:
            break
        text = longer
    return text


def _need(offer: ModelOption, *, is_short: bool) -> Line:
    verdict = offer.verdict
    assert verdict is not None
    sign = VERDICT_SIGNS[verdict]
    word = SPILLS if offer.spills else WORDS[verdict]
    size = fmt.nbytes(offer.needed_bytes)
    size_width = SIZE_WIDTH if is_short else NEED_WIDTH - VERDICT_WIDTH
    if not is_short:
        size += f" of {fmt.nbytes(offer.free_bytes)}"
    style = "warn" if offer.spills else sign.style
    shape = "◐" if offer.spills else sign.text
    return (Run(f"{shape} {word:<7}", style), Run(f"{size:>{size_width}}"))


def _speed(offer: ModelOption) -> Line:
    style = "good" if offer.speed is not None else "muted"
    return (Run(f"{speed_text(offer.speed, offer.bound):<{SPEED_WIDTH}}", style),)


def configuration_lines(configuration: Configuration, model: Model, width: int) -> list[Line]:
    """A configuration as rows: context, cache, layers, batch and drafts."""
    return [
        clipped((Run(f"{name:<11}", "muted"), Run(visible(text))), width)
        for name, text in configuration_rows(configuration, model)
    ]


def goal_lines(found: SearchResult, width: int) -> list[Line]:
    """A table of the chosen settings with the tokens that each gains, and the alternatives."""
    lines: list[Line] = [(Run("found for ", "heading-minor"), Run(str(found.goal), "strong"))]
    rows = [("", "chosen", "tokens", "instead of")]
    for each in found.settings:
        is_best, gained = each.chosen == each.best, each.gained_tokens
        tokens = "" if is_best or gained is None else f"{gained:+,}"
        rows.append((each.setting, each.chosen, tokens, "" if is_best else each.best))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for number, (name, chosen, tokens, best) in enumerate(rows):
        start = Run(f"{name:<{widths[0]}}  ", "muted")
        middle = f"{chosen:<{widths[1]}}  {tokens:>{widths[2]}}  "
        if not best:
            middle = middle.rstrip()
        runs = (start, Run(middle, "" if number else "muted"), Run(best, "muted"))
        lines.append(clipped(runs, width))
    if found.alternatives:
        lines.append((Run("alternatives", "muted"),))
    for alternative in found.alternatives:
        lines += _item("·", alternative.label, width, "muted")
    return lines


def _item(sign: str, text: str, width: int, style: str = "") -> list[Line]:
    return hanging((Run(f"{sign} ", "accent"),), (Run(one_line(text), style),), width)


def preset_lines(
    entry: PresetEntry, text: str, outcome: Plan | str | None, width: int, *, is_hint: bool
) -> list[Line]:
    """The preview of a preset: description, plan, file.

    Args:
        entry: The preset.
        text: The contents of its file.
        outcome: Its plan, or why it has none; None while this is not known.
        width: Cells of a line.
        is_hint: Whether the reason tells what to do and is no fault.
    """
    kind = "built in" if entry.is_builtin else "yours"
    lines: list[Line] = [(Run(visible(entry.name), "strong"), Run(f"  {kind}", "muted"))]
    lines += [(Run(part),) for part in wrap(visible(entry.description), width)]
    lines.append(EMPTY)
    if entry.problem:
        lines += _problem(entry.problem, width)
    elif isinstance(outcome, str) and is_hint:
        lines += [*((Run(part, "muted"),) for part in wrap(outcome, width)), EMPTY]
    elif isinstance(outcome, str):
        lines += [*_problem(outcome, width), EMPTY]
    elif outcome is not None:
        lines += _outcome(outcome)
    if not entry.is_builtin:
        lines.append((Run(visible(str(entry.path)), "muted"),))
    return [*lines, *(_toml_line(visible(row)) for row in text.splitlines())]


def _outcome(plan: Plan) -> list[Line]:
    configuration = plan.setup.configuration
    facts = (
        f"context {fmt.count(configuration.n_ctx)} · K {configuration.type_k} · "
        f"V {configuration.type_v} · {fmt.nbytes(plan.estimate.total_bytes)}"
    )
    name = visible(model_name(plan.model.file.path))
    return [(Run(f"with {name}", "heading-minor"),), (Run(facts),), verdict_line(plan), EMPTY]


def _problem(text: str, width: int) -> list[Line]:
    rows = [
        part
        for row in visible(text).splitlines()
        for part in (wrap(row.strip(), width - 2, subsequent_indent="  ") or [""])
    ]
    return [(Run(f"{'✗' if i == 0 else ' '} {row}", "bad"),) for i, row in enumerate(rows)]


def _toml_line(row: str) -> Line:
    """A line of the file: headings, comments and keys apart."""
    if row.lstrip().startswith("#"):
        return (Run(row, "muted"),)
    if row.startswith("["):
        return (Run(row, "heading-minor"),)
    key, separator, value = row.partition("=")
    return (Run(key, "muted"), Run(separator + value)) if separator else (Run(row),)
