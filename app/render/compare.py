"""A comparison in lines: what each arm did, and the verdict on speed and on texts."""

from app import format as fmt
from app.render.lines import Line, Run, clipped, field, plain, spread
from app.sanitize import visible
from engine.experiment.arm import Arm
from engine.experiment.comparison import Comparison, Divergence, divergences
from engine.experiment.gain import MIN_GAIN, N_DECIDING, N_MAX, ORDER, PairedGain
from engine.experiment.runner import ArmReply
from engine.requests import GenerationRequest

NEAR_TIE = 0.1
"""Logits between the two likeliest tokens under which rounding may decide."""
TEXT_WIDTH = 200
"""Cells of a line where nothing limits it."""
NOT_YET = (Run("a comparison needs four replies", "muted"),)


def question_line(question: str, request: GenerationRequest, width: int) -> Line:
    """The prompt and its conditions."""
    asked = visible(" ".join(question.split()))
    sampling = request.sampling
    drawn = f"temperature {sampling.temperature:g}" if sampling.temperature else "greedy"
    limit = f"at most {fmt.counted(request.max_tokens, 'token')}" if request.max_tokens else ""
    seed = "" if request.seed is None else f"seed {request.seed}"
    right = (Run(f"{' · '.join(filter(None, (limit, drawn, seed)))} ", "muted"),)
    return spread((Run(" compare  ", "strong"), Run(asked)), right, width)


def comparison_text(comparison: Comparison) -> str:
    """Figures and verdict as plain text, for the clipboard and the command."""
    lines: list[str] = []
    for arm, answer in zip(comparison.arms, comparison.shown, strict=True):
        figures = [plain(line) for line in figure_lines(answer, TEXT_WIDTH)]
        lines.append(f"{arm.name:<20} {' · '.join(filter(None, figures))}")
    lines += [plain(line) for line in verdict_lines(comparison, TEXT_WIDTH)]
    return "\n".join(lines)


def figure_lines(answer: ArmReply | None, width: int) -> list[Line]:
    """The time, the speed and the counts of an arm's newest reply, two lines."""
    if answer is None:
        return [(Run("not answered yet", "muted"),), ()]
    if not answer.stats.n_rounds:
        return [(Run("reading the prompt", "muted"),), ()]
    n_emitted = fmt.counted(answer.stats.n_emitted, "token")
    clock = (
        Run(fmt.seconds(answer.stats.decode_s), "strong"),
        Run(f" · {fmt.rate(answer.decode_tps)} tok/s · {n_emitted}"),
    )
    second = Run(visible(answer.note), "warn") if answer.note else Run(_counts(answer), "muted")
    return [clipped(clock, width), clipped((second,), width)]


def _counts(answer: ArmReply) -> str:
    stats = answer.stats
    if answer.arm.is_plain:
        return "no drafts: one token per round"
    if not stats.n_verified:
        return "nothing drafted: one token per round"
    parts = [f"accept {fmt.acceptance(stats.n_accepted, stats.n_verified)}"]
    if stats.n_verified >= fmt.MANY:
        parts = [f"{parts[0]} ({fmt.count(stats.n_accepted)}/{fmt.count(stats.n_verified)})"]
    if stats.tokens_per_round is not None:
        parts.append(f"{stats.tokens_per_round:.2f} tokens/round")
    return " · ".join(parts)


def verdict_lines(comparison: Comparison, width: int) -> list[Line]:
    """The state, the speed and the texts so far."""
    lines = field("now", _state(comparison), width)
    lines += field("speed", _speed(comparison), width)
    return lines + field("text", _texts(comparison), width)


def _state(comparison: Comparison) -> Line:
    index = comparison.running_arm
    if index is not None:
        seconds = comparison.remaining_s
        left = "" if seconds is None else f" · about {fmt.seconds(seconds)} left"
        return (
            Run(f"reply {comparison.n_replies} of {len(ORDER) * comparison.n_wanted}: "),
            Run(comparison.arms[index].name, "accent"),
            Run(" answers"),
            Run(left, "muted"),
        )
    if comparison.problem is not None:
        return (Run(visible(comparison.problem), "warn"),)
    n_blocks = len(comparison.blocks)
    replies = fmt.counted(len(ORDER) * n_blocks, "reply")
    return (Run(f"{replies} done" if n_blocks else "no prompt sent yet", "muted"),)


def _speed(comparison: Comparison) -> Line:
    gain = comparison.gain
    if gain is None:
        return NOT_YET
    if not comparison.has_drafts:
        return (
            Run("neither side drafted", "strong"),
            Run(f" ({gain.measured:.2f}x): the difference is measurement noise", "muted"),
        )
    return (*_verdict(gain, *comparison.arms), Run(_unexplained(gain), "muted"))


def _verdict(gain: PairedGain, first: Arm, second: Arm) -> Line:
    ratio = f"{gain.median:.2f}x"
    ends = f"{gain.low:.2f}x to {gain.high:.2f}x in {fmt.counted(gain.n_blocks, 'block')}"
    if gain.is_faster or gain.reversed.is_faster:
        style, word = ("good", "faster") if gain.is_faster else ("bad", "slower")
        return (
            Run(ratio, f"strong {style}"),
            Run(f": {second.name} is {word} than {first.name}"),
            Run(f"  {ends}", "muted"),
        )
    if gain.is_settled:
        return (Run("no clear difference", "strong"), Run(f" ({ratio}, {ends})"))
    needed = N_DECIDING if gain.n_blocks < N_DECIDING else N_MAX
    return (Run(f"{ratio} so far", "strong"), Run(f" ({ends}): the verdict needs {needed} blocks"))


def _unexplained(gain: PairedGain) -> str:
    """What of the measured ratio is no effect of drafts; empty if it is too small to matter."""
    excess = gain.measured / gain.median
    if max(excess, 1 / excess) < MIN_GAIN:
        return ""
    return f"  measured {gain.measured:.2f}x: drafts explain {gain.median:.2f}x, the rest is noise"


def _texts(comparison: Comparison) -> Line:
    found = divergences(comparison)
    if not found:
        return NOT_YET
    different = [divergence for divergence in found if divergence is not None]
    if not different:
        n_tokens = comparison.blocks[-1][0].stats.n_emitted
        return (
            Run(f"identical: every reply has the same {fmt.counted(n_tokens, 'token')}", "good"),
        )
    last = different[-1]
    return (
        Run(f"diverges at token {last.token + 1}", "warn"),
        Run(f" in {len(different)} of {len(found)} replies", "muted"),
        Run(f": {visible(last.before)} "),
        Run(f"[{_or_end(last.first)}]", "strong"),
        Run(" or "),
        Run(f"[{_or_end(last.second)}]", "strong"),
        Run(_why(last, comparison), "muted"),
    )


def _or_end(words: str) -> str:
    return visible(words.replace("\n", " ")) or "the reply ends"


def _why(divergence: Divergence, comparison: Comparison) -> str:
    is_drawn = comparison.request.sampling.temperature > 0
    if is_drawn and comparison.speculation.verification == "rejection":
        return "  rejection sampling preserves the distribution, not the text"
    if divergence.margin is None:
        return ""
    if divergence.margin <= NEAR_TIE:
        return f"  near tie: the logits differ by {divergence.margin:.3f}, so rounding decides"
    return f"  the logits differ by {divergence.margin:.2f}"
