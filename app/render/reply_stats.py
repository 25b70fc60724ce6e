"""The statistics of a reply as text."""

from app import format as fmt
from app.store.records import StoredMessage, stats_of
from engine.events import GenerationStats


def reply_stats_text(message: StoredMessage) -> str | None:
    """The measured statistics of a reply, one line each; None if none were saved."""
    stats = stats_of(message)
    if stats is None:
        return None
    lines = [_made_by(message), _speed(stats), _prompt(stats)]
    if stats.n_drafted:
        lines += [_counts(stats), _saved(stats), _by_source(stats), _by_position(stats)]
    return "\n".join(line for line in lines if line)


def _made_by(message: StoredMessage) -> str:
    parts = [] if message.model_name is None else [message.model_name]
    if message.seed is not None:
        parts.append(f"seed {message.seed}")
    if message.predictor == "off":
        parts.append("no drafts")
    elif message.predictor is not None:
        parts += [f"drafts by {message.predictor}", f"length {message.controller}"]
    return " · ".join(parts)


def _speed(stats: GenerationStats) -> str:
    if stats.n_emitted == 0:
        return "the reply ended before its first token"
    text = f"{fmt.counted(stats.n_emitted, 'token')} in {fmt.seconds(stats.decode_s)}"
    if stats.decode_tps is not None:
        text += f", {fmt.speed(stats.decode_tps, stats.plain_spread)}"
    if stats.first_token_s is not None:
        text += f", first token after {fmt.seconds(stats.first_token_s)}"
    return text


def _prompt(stats: GenerationStats) -> str:
    if stats.n_prompt is None:
        return ""
    read = f"prompt of {fmt.counted(stats.n_prompt, 'token')}"
    if stats.n_reused:
        read += f", {fmt.count(stats.n_reused)} of them reused"
    return f"{read}, prefilled in {fmt.seconds(stats.prefill_s)}" if stats.prefill_s else read


def _counts(stats: GenerationStats) -> str:
    counts = (
        f"drafted {fmt.count(stats.n_drafted)}",
        f"verified {fmt.count(stats.n_verified)}",
        f"examined {fmt.count(stats.n_examined)}",
        f"accepted {fmt.count(stats.n_accepted)}",
        f"refuted {fmt.count(stats.n_verified - stats.n_accepted)}",
    )
    rounds = fmt.counted(stats.n_rounds, "round")
    if stats.tokens_per_round is not None:
        rounds += f" of {stats.tokens_per_round:.2f} tokens"
    return f"{', '.join(counts)}; {rounds}"


def _saved(stats: GenerationStats) -> str:
    """Time saved by drafts with its error; empty if unknown."""
    saved_s, error_s, plain_s = stats.saved_s, stats.saved_error_s, stats.plain_step_s
    if saved_s is None or error_s is None or plain_s is None:
        return ""
    against = f"{1000 * plain_s:.1f} ms per step without drafts"
    if fmt.is_noisy(stats.plain_spread):
        against += f", which varies by {fmt.percent(stats.plain_spread)}"
    speedup = fmt.measured_speedup(stats.speedup, saved_s, error_s)
    if speedup is None:
        return f"no clear gain or loss over {against}: the noise is ±{fmt.seconds(error_s)}"
    what = "saved" if saved_s > 0 else "lost"
    off = f"\N{PLUS-MINUS SIGN} {fmt.seconds(error_s)}"
    return f"speedup {speedup} over {against}: {fmt.seconds(abs(saved_s))} {off} {what}"


def _by_source(stats: GenerationStats) -> str:
    parts = [
        f"{name} {_rate(counts.n_accepted, counts.n_verified)}"
        for name, counts in sorted(stats.by_source.items())
        if counts.n_verified
    ]
    return f"accepted by source: {' · '.join(parts)}" if parts else ""


def _by_position(stats: GenerationStats) -> str:
    parts = [
        f"{position}: {_rate(counts.n_accepted, counts.n_examined)}"
        for position, counts in enumerate(stats.by_position, 1)
    ]
    return f"acceptance by position in the draft: {' · '.join(parts)}" if parts else ""


def _rate(part: int, whole: int) -> str:
    """A share with its total: `1 of 3`, or `67% of 180` from `MANY` on."""
    shown = fmt.count(part) if whole < fmt.MANY else fmt.percent(fmt.share(part, whole))
    return f"{shown} of {fmt.count(whole)}"
