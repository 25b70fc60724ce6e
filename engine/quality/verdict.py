"""A measurement in one sentence."""

from collections.abc import Mapping

from engine.quality.records import CacheKind, Measurement, Part, Report, n_right

KIND_NAMES: Mapping[str, str] = {
    "chat": "chat",
    "code": "code",
    "document": "long documents",
    "tools": "tool calls",
}
"""How a sentence calls the kinds of text."""


def sentence(row: Measurement, report: Report) -> str:
    """What a kind saves and what it costs, by kind of text; ends without a full stop.

    Such as `q8_0 K with q5_1 V: 1.9x smaller, same top token 99.6 %, nothing measurable on chat,
    0.004 nats on long documents`. Not measurable is a loss of likelihood whose interval holds 0, or
    that is no larger than the control's.
    """
    parts = [f"same top token {100 * row.scores.same_top.value:.1f} %", *_losses(row, report)]
    smaller = _smaller(row, report)
    if smaller is not None:
        parts.insert(0, smaller)
    found = _answers(row, report)
    return f"{spelled(row.kind)}: {', '.join(parts + found)}"


def spelled(kind: CacheKind) -> str:
    """`q8_0`, or `q8_0 K with q5_1 V`."""
    same = kind.type_k == kind.type_v
    return kind.type_k if same else f"{kind.type_k} K with {kind.type_v} V"


def size_ratio(row: Measurement, report: Report) -> float | None:
    """Bytes of the reference's cache over those of a kind; None where either is not known."""
    first = report.reference
    if first is None or first.cost is None or row.cost is None or not row.cost.kv_bytes:
        return None
    return first.cost.kv_bytes / row.cost.kv_bytes


def _smaller(row: Measurement, report: Report) -> str | None:
    ratio = size_ratio(row, report)
    if ratio is None:
        return None
    if 0.995 <= ratio < 1.005:
        return "as large"
    return f"{ratio:.1f}x smaller" if ratio > 1 else f"{1 / ratio:.1f}x larger"


def _losses(row: Measurement, report: Report) -> list[str]:
    """The loss on each kind of text, those without any together."""
    control = {} if report.control is None else {each.name: each for each in report.control.by_text}
    free = [part.name for part in row.by_text if not is_measurable(part, control.get(part.name))]
    losses = []
    if free:
        names = [KIND_NAMES.get(name, name) for name in free]
        losses.append(f"nothing measurable on {_listed(names)}")
    losses += [
        f"{part.scores.nll_delta.value:.3f} nats on {KIND_NAMES.get(part.name, part.name)}"
        for part in row.by_text
        if part.name not in free
    ]
    return losses


def is_measurable(part: Part, control: Part | None) -> bool:
    """Whether text is less likely with a kind, beyond what is noise."""
    delta = part.scores.nll_delta
    noise = 0.0 if control is None else abs(control.scores.nll_delta.value)
    return delta.value > max(noise, 0.0005) and (delta.low is None or delta.low > 0)


def _answers(row: Measurement, report: Report) -> list[str]:
    """Questions that the reference answers and the kind does not."""
    first = report.reference
    if first is None:
        return []
    said = []
    for name, ours, theirs in (
        ("needles", row.needle, first.needle),
        ("problems", row.reasoning, first.reasoning),
    ):
        (right, asked), (before, _) = n_right(ours), n_right(theirs)
        if asked and right != before:
            said.append(f"{right} of {asked} {name} instead of {before}")
    return said


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
