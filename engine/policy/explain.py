"""Why a cache has its K/V types and what they cost, in one sentence."""

from engine.configuration import KVTypes
from engine.memory.kv_cache import bits_of, is_whole
from engine.policy.choice import Basis
from engine.policy.known import Known
from engine.quality.records import Figure, Measurement, Report, n_right

MEASURE_IT = "`kvchat cache-quality MODEL` measures it"
TEXT_NAMES = {"document": "long documents", "tools": "tool calls"}
"""Names of text kinds in a sentence."""
ROUNDED_AWAY = 0.0005
"""Nats that three digits would show as 0."""


def sentence(report: Report, kind: KVTypes) -> str:
    """Size, same-top share and loss on each kind of text, in one sentence.

    Such as `q8_0 K with q5_1 V: 1.9x smaller, same top token 99.6 %, no measurable loss on chat,
    0.004 nats on long documents`.
    """
    name = kind.k if kind.k == kind.v else f"{kind.k} K with {kind.v} V"
    found = next((e for e in (report.reference, report.find(kind)) if e and e.kind == kind), None)
    if found is None:
        return f"{name} was not measured"
    if found.role == "reference":
        return f"{name}: the reference type"
    percent = f"{100 * found.scores.same_top.value:.1f} %"
    if found.scores.same_top.value < 1 and percent == "100.0 %":
        percent = "99.9 %"
    same_top = f"same top token {percent}"
    parts = [_size(found, report), same_top, *_losses(found, report)]
    before = n_right(report.reference.needle)[0] if report.reference else 0
    right, asked = n_right(found.needle)
    if right < before:
        parts.append(f"{before - right} of {asked} needles not retrieved")
    if not found.is_complete:
        parts.append("measurement incomplete")
    return f"{name}: {', '.join(parts)}"


def explain(known: Known, pair: KVTypes) -> str:
    """Why a cache has its types: their figures, why smaller ones fail, or that it is a guess."""
    standing = known.standing(pair)
    if standing.basis is Basis.GUESSED:
        text = f"{pair}, not measured on this model ({MEASURE_IT})"
        return f"{text}; {standing.text}" if known.has_key_biases and not is_whole(pair) else text
    if known.has_verdict and is_whole(pair):
        return _why_whole(known, pair)
    if known.report is None or not known.has_verdict or standing.basis is Basis.UNKNOWN:
        return f"{pair}: {standing.text}"
    return sentence(known.report, pair)


def _why_whole(known: Known, pair: KVTypes) -> str:
    """Why smaller types fail, or which ones would pass too."""
    smaller = [each for each in known.candidates.values() if not is_whole(each.pair)]
    passing = [each.pair for each in smaller if not each.objections]
    if passing:
        return (
            f"{pair}, although {' and '.join(map(str, passing))} would pass the quality limits too"
        )
    failed = [f"{each.pair}: {each.objections[0]}" for each in smaller if each.objections]
    why = f" ({'; '.join(failed[:2])})" if failed else ""
    return f"{pair}, because no smaller type passes the quality limits{why}"


def _size(found: Measurement, report: Report) -> str:
    """Size of the cache relative to the reference's: as allocated, else by bits."""
    cost, whole_cost = found.cost, report.reference.cost if report.reference else None
    pair, whole, ratio = found.kind, report.subject.reference, 1.0
    if cost and whole_cost and cost.kv_bytes and whole_cost.kv_bytes:
        ratio = whole_cost.kv_bytes_per_token / cost.kv_bytes_per_token
    elif pair.are_of_llama_cpp and whole.are_of_llama_cpp:
        ratio = sum(bits_of(whole)) / sum(bits_of(pair))
    if abs(ratio - 1) < 0.05:
        return "same size"
    return f"{ratio:.1f}x smaller" if ratio > 1 else f"{1 / ratio:.1f}x larger"


def _losses(found: Measurement, report: Report) -> list[str]:
    """The kinds of text without measurable loss, then the losses, the largest last."""
    noise: dict[str, float] = {}
    if report.control:
        noise = {part.name: _largest(part.scores.nll_delta) for part in report.control.by_text}
        noise[""] = _largest(report.control.scores.nll_delta)
    parts = [(part.name, part.scores.nll_delta) for part in found.by_text]
    if len(parts) < 2:
        parts = [("", found.scores.nll_delta)]
    lost = [  # above 0, above the noise of the control, and above rounding
        (name, loss)
        for name, loss in parts
        if min(loss.value, loss.value if loss.low is None else loss.low) > 0
        and loss.value > max(noise.get(name, 0.0), ROUNDED_AWAY)
    ]
    lossless = [name for name, loss in parts if (name, loss) not in lost]
    first = [f"no measurable loss{_on(lossless)}"] if lossless else []
    ordered = sorted(lost, key=lambda each: each[1].value)
    return first + [f"{loss.value:.3f} nats{_on([name])}" for name, loss in ordered]


def _largest(figure: Figure) -> float:
    return max(map(abs, (figure.value, figure.low or 0.0, figure.high or 0.0)))


def _on(names: list[str]) -> str:
    known = [TEXT_NAMES.get(name, name) for name in names if name]
    if not known:
        return ""
    *others, last = known
    return f" on {', '.join(others)} and {last}" if others else f" on {last}"
