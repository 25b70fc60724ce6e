"""A comparison in lines: what each side did, and the verdict on speed and on identity."""

from collections.abc import Sequence

from app import format as fmt
from app.compare.comparison import Answer, Comparison
from app.compare.side import Side
from app.compare.verdict import (
    NEAR_ONE,
    Divergence,
    Identity,
    Speed,
    has_drafts,
    identity_of,
    remaining_s,
    speed_of,
)
from app.render.lines import Line, Run, clipped, field, plain, spread
from app.sanitize import visible
from engine.requests import GenerationRequest

NEAR_TIE = 0.1
"""Logits between the two likeliest tokens under which a batch may decide in another way."""
WIDTH_OF_TEXT = 200
"""Cells of a line where nothing limits it."""
N_RATIOS = 9
"""Ratios of single pairs that are listed."""


def question_line(question: str, request: GenerationRequest, width: int) -> Line:
    """What is asked, and under which conditions."""
    asked = visible(" ".join(question.split()))
    sampling = request.sampling
    drawn = f"temperature {sampling.temperature:g}" if sampling.temperature else "greedy"
    limit = (
        f"at most {fmt.counted(request.max_tokens, 'token')}" if request.max_tokens else "no limit"
    )
    seed = "" if request.seed is None else f" · seed {request.seed}"
    right = (Run(f"{limit} · {drawn}{seed} ", "muted"),)
    return spread((Run(" compare  ", "strong"), Run(asked)), right, width)


def comparison_text(comparison: Comparison) -> str:
    """Figures and verdict as plain text, for the clipboard and the command."""
    lines: list[str] = []
    for side, answer in zip(comparison.sides, comparison.shown, strict=True):
        figures = [plain(line) for line in figure_lines(answer, WIDTH_OF_TEXT)]
        lines.append(f"{side.label:<20} {' · '.join(filter(None, figures))}")
    lines += [plain(line) for line in verdict_lines(comparison, WIDTH_OF_TEXT)]
    return "\n".join(lines)


def figure_lines(answer: Answer | None, width: int) -> list[Line]:
    """The clock, the speed and the counts of one side, two lines."""
    if answer is None:
        return [(Run("not answered yet", "muted"),), ()]
    if answer.elapsed_s is None:
        return [(Run("reading the prompt", "muted"),), ()]
    tally = answer.tally
    clock = (
        Run(fmt.seconds(answer.elapsed_s), "strong"),
        Run(f" · {fmt.rate(answer.decode_tps)} tok/s · {fmt.counted(tally.n_emitted, 'token')}"),
    )
    if answer.note:
        return [clipped(clock, width), clipped((Run(visible(answer.note), "warn"),), width)]
    return [clipped(clock, width), clipped((Run(_counts(answer), "muted"),), width)]


def _counts(answer: Answer) -> str:
    tally = answer.tally
    if answer.side.is_plain:
        return "no drafts: one token per round"
    if not tally.n_verified:
        return "nothing drafted: one token per round"
    parts = [f"accept {fmt.acceptance(tally.n_accepted, tally.n_verified)}"]
    if tally.n_verified >= fmt.MANY:
        parts = [f"{parts[0]} ({fmt.count(tally.n_accepted)}/{fmt.count(tally.n_verified)})"]
    if tally.tokens_per_round is not None:
        parts.append(f"{tally.tokens_per_round:.2f} tokens/round")
    return " · ".join(parts)


def verdict_lines(comparison: Comparison, width: int) -> list[Line]:
    """What is known so far: the state, the speed, the texts."""
    first, second = comparison.sides
    lines = field("now", _state(comparison), width)
    speed = speed_of(comparison.pairs)
    if speed is not None and not has_drafts(comparison.pairs):
        lines += field("speed", _undrafted(speed), width)
    else:
        lines += field("speed", _speed(speed, first, second), width)
    identity = identity_of(comparison.pairs)
    return lines + field("text", _identity(identity, comparison), width)


def _state(comparison: Comparison) -> Line:
    n_pairs = len(comparison.pairs)
    index = comparison.running_side
    if index is not None:
        label = comparison.sides[index].label
        of = f"pair {n_pairs + 1} of {comparison.n_wanted}"
        return (
            Run(f"{of}: "),
            Run(label, "accent"),
            Run(" answers"),
            Run(_time_left(comparison), "muted"),
        )
    if comparison.problem is not None:
        return (Run(visible(comparison.problem), "warn"),)
    done = f"{_pairs(n_pairs)} done" if n_pairs else "no prompt sent yet"
    return (Run(done, "muted"),)


def _time_left(comparison: Comparison) -> str:
    """How long it will take, from the replies so far; empty where nothing is known of it."""
    seconds = remaining_s(comparison)
    if seconds is None:
        return ""
    about = "about" if comparison.pairs else "at most"
    return f" · {about} {fmt.seconds(seconds)} left"


def _speed(speed: Speed | None, first: Side, second: Side) -> Line:
    if speed is None:
        return (Run("known when both sides have answered", "muted"),)
    ratio = speed.possible
    if speed.is_noise:
        said: Line = (
            Run("no clear difference", "strong"),
            Run(f" ({speed.median:.2f}x): drafts explain at most {ratio:.2f}x, the rest is noise"),
        )
    elif speed.is_clear:
        style, word = ("good", "faster") if ratio > 1 else ("bad", "slower")
        verb = "is" if len(speed.ratios) > 1 else "was"
        said = (  # one pair is no proof: it has no colour
            Run(f"{ratio:.2f}x", f"strong {style}" if len(speed.ratios) > 1 else "strong"),
            Run(f": {second.label} {verb} {word} than {first.label}"),
        )
    elif abs(ratio - 1) <= NEAR_ONE:
        said = (Run("the same speed", "strong"), Run(f" ({ratio:.2f}x)"))
    else:
        said = (Run("no clear difference", "strong"), Run(f" ({ratio:.2f}x): the pairs disagree"))
    return (*said, Run(f"  {_spelled(speed.ratios)}", "muted"))


def _undrafted(speed: Speed) -> Line:
    said = (Run("neither side drafted", "strong"), Run(f" ({speed.median:.2f}x)"))
    return (*said, Run(": the difference is noise of the machine", "muted"))


def _spelled(ratios: Sequence[float]) -> str:
    if len(ratios) == 1:
        return "one pair so far"
    listed = " ".join(f"{ratio:.2f}" for ratio in ratios[-N_RATIOS:])
    return f"median of {len(ratios)} pairs: {listed}"


def _identity(identity: Identity | None, comparison: Comparison) -> Line:
    if identity is None:
        return (Run("known when both sides have answered", "muted"),)
    if identity.divergence is None:
        of_tokens = fmt.counted(identity.n_tokens, "token")
        what = f"identical, all {of_tokens}" if identity.n_tokens > 1 else "identical"
        return (Run(what, "good"), Run("" if identity.n_pairs == 1 else " in every pair", "muted"))
    divergence = identity.divergence
    share = f" in {identity.n_pairs - identity.n_same} of {_pairs(identity.n_pairs)}"
    return (
        Run(f"diverges at token {divergence.token + 1}", "warn"),
        Run("" if identity.n_pairs == 1 else share, "muted"),
        Run(f": {visible(divergence.before)} "),
        Run(f"[{_or_end(divergence.first)}]", "strong"),
        Run(" or "),
        Run(f"[{_or_end(divergence.second)}]", "strong"),
        Run(_why(divergence, comparison), "muted"),
    )


def _or_end(words: str) -> str:
    return visible(words.replace("\n", " ")) or "the reply ends"


def _why(divergence: Divergence, comparison: Comparison) -> str:
    is_drawn = comparison.request.sampling.temperature > 0
    methods = {side.settings.verification for side in comparison.sides if not side.is_plain}
    if is_drawn and "rejection" in methods:
        return "  rejection preserves the distribution, not the text"
    if divergence.margin is None:
        return ""
    if divergence.margin <= NEAR_TIE:
        return f"  a near tie: {divergence.margin:.3f} logits apart, rounding decides"
    return f"  {divergence.margin:.2f} logits apart"


def _pairs(n_pairs: int) -> str:
    return "1 pair" if n_pairs == 1 else f"{n_pairs} pairs"
