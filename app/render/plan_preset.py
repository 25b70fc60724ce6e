"""A preset file as lines: what it is for, its text, and what it comes to with a model."""

from textwrap import wrap

from app.planning.plan import Plan
from app.render import format as fmt
from app.render.lines import EMPTY, Line, Run
from app.render.plan import verdict_line
from app.render.sanitize import visible
from engine.presets.library import PresetEntry


def preset_lines(
    entry: PresetEntry,
    text: str,
    width: int,
    *,
    outcome: Plan | None = None,
    problem: str = "",
    hint: str = "",
) -> list[Line]:
    """The preview of a preset.

    Args:
        entry: The file in the list.
        text: What stands in it.
        width: Cells of a line.
        outcome: What it comes to with a model; None while that is not known.
        problem: Why it comes to nothing.
        hint: What it still needs.
    """
    kind = "comes with kvchat" if entry.is_builtin else "yours"
    lines: list[Line] = [(Run(visible(entry.name), "strong"), Run(f"  {kind}", "muted"))]
    lines += [(Run(part),) for part in wrap(visible(entry.description), width)]
    lines += [EMPTY, *_problem(entry.problem, width)] if entry.problem else [EMPTY]
    lines += _outcome(outcome)
    lines += [*_problem(problem, width), EMPTY] if problem and not entry.problem else []
    lines += [*((Run(part, "muted"),) for part in wrap(hint, width)), EMPTY] if hint else []
    lines.append((Run(visible(str(entry.path)), "muted"),))
    return [*lines, *(_toml_line(visible(row)) for row in text.splitlines())]


def _outcome(plan: Plan | None) -> list[Line]:
    if plan is None:
        return []
    configuration = plan.setup.configuration
    facts = (
        f"context {fmt.count(configuration.n_ctx)} · K {configuration.type_k} · "
        f"V {configuration.type_v} · {fmt.nbytes(plan.estimate.total_bytes)}"
    )
    name = visible(plan.model.file.path.stem)
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
