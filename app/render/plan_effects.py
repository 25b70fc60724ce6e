"""What-ifs as lines: `-1.2 GiB`, `+14k`, whether it fits then, and what would be done."""

from app.planning.verdict import Verdict
from app.planning.what_if import Arrows, Effect
from app.render import format as fmt
from app.render.lines import Line, Run, clipped
from app.render.plan_terms import VERDICT_SIGNS

DELTA_WIDTH = 9
GAIN_WIDTH = 6
LABEL_WIDTH = 8
MINUS = "\N{MINUS SIGN}"


def delta_text(nbytes: int) -> str:
    """A difference of memory with its sign."""
    if nbytes == 0:
        return "\N{PLUS-MINUS SIGN}0"
    return f"{'+' if nbytes > 0 else MINUS}{fmt.nbytes(abs(nbytes))}"


def gain_text(n_ctx: int) -> str:
    """A difference of the largest context with its sign, empty where there is none."""
    if n_ctx == 0:
        return ""
    n = abs(n_ctx)
    digits = 1 if n < 10 * 1024 else 0
    size = str(n) if n < 1000 else f"{n / 1024:.{digits}f}k"
    return f"{'+' if n_ctx > 0 else MINUS}{size}"


def arrow_lines(arrows: Arrows | None, width: int) -> list[Line]:
    """What a step back and a step on of the chosen knob change; always two lines."""
    if arrows is None:
        return [(), ()]
    return [
        _arrow_line("◂", arrows.less, width),
        _arrow_line("▸", arrows.more, width),
    ]


def _arrow_line(sign: str, effect: Effect | None, width: int) -> Line:
    if effect is None:
        return (Run(f"{sign} ", "accent"), Run("no further", "muted"))
    label = clipped((Run(effect.label),), LABEL_WIDTH)[0].text
    gain = gain_text(effect.delta_n_ctx)
    return clipped(
        (
            Run(f"{sign} ", "accent"),
            Run(f"{label:<{LABEL_WIDTH}}"),
            Run(f"{delta_text(effect.delta_bytes):>{DELTA_WIDTH + 1}}", _style(effect.delta_bytes)),
            Run(f"{gain:>{GAIN_WIDTH + 1}} ", "muted"),
            VERDICT_SIGNS[effect.verdict],
        ),
        width,
    )


def effect_lines(effects: tuple[Effect, ...], width: int, hint: str = "") -> list[Line]:
    """The changes worth a thought, one a line under their heading, which says what a key does."""
    if not effects:
        return []
    heading: Line = (
        Run("what if", "heading-minor"), Run(f"  memory, largest context{hint}", "muted")
    )  # fmt: skip
    return [clipped(line, width) for line in (heading, *map(effect_line, effects))]


def advice_line(effects: tuple[Effect, ...], verdict: Verdict) -> Line:
    """The first change that makes a plan fit; empty where it fits, or where none does."""
    first = next(iter(effects), None)
    if first is None or verdict is Verdict.FITS or first.verdict is not Verdict.FITS:
        return ()
    freed = f"  {delta_text(first.delta_bytes)} · a takes it"
    return (Run("fits with ", "good"), Run(first.label, "strong"), Run(freed, "muted"))


def effect_line(effect: Effect) -> Line:
    """One change: whether it fits then, the memory, the largest context, and what is done."""
    return (
        VERDICT_SIGNS[effect.verdict],
        Run(f"{delta_text(effect.delta_bytes):>{DELTA_WIDTH + 1}}", _style(effect.delta_bytes)),
        Run(f"{gain_text(effect.delta_n_ctx):>{GAIN_WIDTH + 1}}  "),
        Run(effect.label, "strong"),
    )


def _style(delta_bytes: int) -> str:
    return "good" if delta_bytes < 0 else "warn" if delta_bytes > 0 else "muted"
