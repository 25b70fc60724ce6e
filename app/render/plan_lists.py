"""Lists of models, goals, presets and exports to choose from."""

from textwrap import wrap

from app import format as fmt
from app.render.lines import EMPTY, Line, Run, clipped, hanging, padded, spread
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
LEGEND = "✓ fits · ! tight · ◐ partly in RAM · ✗ too large · ≤ at most · ~ about"
SPILLS = "partly"
"""Verdict of a model that needs RAM beside the GPU."""
NAME_WIDTH, SPEED_WIDTH, SIZE_WIDTH = 26, 15, 19


def model_option_line(option: ModelOption, width: int, *, is_now: bool) -> Line:
    """A model with its facts on the left; speed, verdict and memory on the right."""
    marker = Run("• " if is_now else "  ", "accent")
    name = Run(visible(option.name), "strong" if not option.problem else "muted")
    if option.problem:
        return clipped((marker, name, Run(f"  {visible(option.problem)}", "bad")), width)
    facts = Run(f"  {' · '.join(filter(None, map(visible, option.facts)))}", "muted")
    style = "good" if option.speed is not None else "muted"
    speed = Run(f"{speed_text(option.speed, option.bound):<{SPEED_WIDTH}}", style)
    left = (*padded((marker, name), NAME_WIDTH), facts)
    return spread(left, (speed, *_need(option)), width)


def _need(option: ModelOption) -> Line:
    if option.verdict is None:
        return ()
    sign, word = VERDICT_SIGNS[option.verdict], WORDS[option.verdict]
    if option.spills:
        sign, word = Run("◐", "warn"), SPILLS
    size = fmt.nbytes_of(option.needed_bytes, option.free_bytes)
    return (Run(f"{sign.text} {word:<7}", sign.style), Run(f"{size:>{SIZE_WIDTH}}"))


def configuration_lines(configuration: Configuration, model: Model, width: int) -> list[Line]:
    """Context, cache, layers, batches and drafts of a configuration."""
    return [
        clipped((Run(f"{name:<11}", "muted"), Run(visible(text))), width)
        for name, text in configuration_rows(configuration, model)
    ]


def goal_lines(found: SearchResult, width: int) -> list[Line]:
    """A table of the chosen settings with the tokens that each gains, and the alternatives."""
    rows = [("", "chosen", "tokens", "instead of")]
    for each in found.settings:
        gained = "" if each.gained_tokens is None else f"{each.gained_tokens:+,}"
        is_best = each.chosen == each.best
        rows.append((each.setting, each.chosen, *(("", "") if is_best else (gained, each.best))))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines: list[Line] = [(Run("found for ", "heading-minor"), Run(str(found.goal), "strong"))]
    for number, (name, chosen, tokens, best) in enumerate(rows):
        middle = f"{chosen:<{widths[1]}}  {tokens:>{widths[2]}}  "
        runs = Run(f"{name:<{widths[0]}}  ", "muted"), Run(middle, "" if number else "muted")
        lines.append(clipped((*runs, Run(best, "muted")), width))
    if found.alternatives:
        lines.append((Run("alternatives", "muted"),))
    for alternative in found.alternatives:
        label = Run(one_line(alternative.label), "muted")
        lines += hanging((Run("· ", "accent"),), (label,), width)
    return lines


def preset_lines(
    entry: PresetEntry, text: str, outcome: Plan | str | None, width: int, *, is_hint: bool
) -> list[Line]:
    """The preview of a preset: description, plan, file.

    Args:
        entry: The preset.
        text: The contents of its file.
        outcome: Its plan, or why it has none; None while this is not known.
        width: Cells of a line.
        is_hint: Whether the reason is an instruction and no fault.
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
