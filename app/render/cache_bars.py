"""How full the tiers are: a bar each, with tokens and bytes beside their budgets."""

from collections.abc import Iterable

from app.chat.snapshot import CockpitSnapshot
from app.render import format as fmt
from app.render.gauges import GraphSymbols, bar
from app.render.lines import Line, Run, clipped, padded
from engine.cache.report import TierName, TierUse

TIERS: tuple[TierName, ...] = ("hot", "warm", "cold")
LABEL_WIDTH = 7
"""Cells of the label column of everything about the cache."""
MIN_BAR = 8
"""Cells under which a bar says nothing."""
TOKENS_WIDTH = 10
BYTES_WIDTH = 11

Tier = TierUse | TierName
"""How full a tier is, or its name alone where nothing is known yet."""


def tiers_of(snapshot: CockpitSnapshot) -> tuple[Tier, ...]:
    """Give the three tiers; of one sequence, the hot one as the context tells it round by round."""
    told: dict[TierName, Tier] = {name: name for name in TIERS}
    hot = _hot(snapshot)
    if hot is not None:
        told["hot"] = hot
    if snapshot.tiers is not None:
        is_newer = hot is not None and snapshot.cache is not None and snapshot.n_slots == 1
        told |= {
            tier.name: tier for tier in snapshot.tiers.tiers if tier.name != "hot" or not is_newer
        }
    return tuple(told.values())


def tier_line(tier: Tier, width: int, symbols: GraphSymbols) -> Line:
    """One line: name, bar, tokens and bytes in short; what has no room goes, tokens last."""
    if isinstance(tier, str):
        return _without_bar(tier, fmt.NO_VALUE, width)
    if not _has_budget(tier):
        return _without_bar(tier.name, "off", width)
    figures = _figures(tier, width - LABEL_WIDTH - MIN_BAR - 1)
    room = width - LABEL_WIDTH - sum(len(figure) + 1 for figure in figures)
    runs: list[Run] = [_label(tier.name), *_bar(tier, max(room, 1), symbols)]
    runs += (Run(f" {figure}") for figure in figures)
    return clipped(tuple(runs), width)


def tier_block(tier: Tier, width: int, symbols: GraphSymbols) -> list[Line]:
    """Two lines: name, bar and share; below them the counts in full."""
    if isinstance(tier, str) or not _has_budget(tier):
        return [tier_line(tier, width, symbols), ()]
    percent = f"{fmt.percent(_share(tier)):>5}"
    above = (
        _label(tier.name),
        *_bar(tier, max(width - LABEL_WIDTH - len(percent), 1), symbols),
        Run(percent),
    )
    below = (Run(" " * LABEL_WIDTH), Run(_spelled(tier, width - LABEL_WIDTH)))
    return [clipped(above, width), clipped(below, width)]


def labelled(label: str, *values: str | Run) -> Line:
    """A dimmed label in the width that the tiers' names have, and its values."""
    runs = (Run(value) if isinstance(value, str) else value for value in values)
    return (Run(f"{label:<{LABEL_WIDTH}}", "muted"), *runs)


def _hot(snapshot: CockpitSnapshot) -> TierUse | None:
    cache = snapshot.cache
    n_cells = cache.n_cells if cache else snapshot.n_ctx
    allocated = sum(b.nbytes for b in snapshot.buffers if b.kind == "KV" and b.owner == "target")
    kv_bytes = cache.kv_bytes if cache else allocated
    if not n_cells or not kv_bytes:
        return None
    n_used = cache.n_used if cache else 0
    return TierUse(
        "hot", 1 if n_used else 0, n_used, round(kv_bytes * n_used / n_cells), kv_bytes, n_cells
    )


def _has_budget(tier: TierUse) -> bool:
    return tier.budget_bytes > 0 or bool(tier.budget_tokens)


def _share(tier: TierUse) -> float:
    if tier.budget_tokens:
        return tier.n_tokens / tier.budget_tokens
    return tier.nbytes / tier.budget_bytes


def _label(name: str) -> Run:
    return Run(f"{name:<{LABEL_WIDTH}}", f"tier-{name}")


def _without_bar(name: str, value: str, width: int) -> Line:
    return clipped((_label(name), Run(value, "muted")), width)


def _bar(tier: TierUse, width: int, symbols: GraphSymbols) -> Line:
    """A bar in the tier's colour; free cells differ from used ones in shape too."""
    style = f"tier-{tier.name}"
    runs = [
        Run(run.text, style if run.style == "bar-used" else run.style)
        for run in bar(_share(tier), width, symbols)
    ]
    return padded(tuple(runs), width)


def _figures(tier: TierUse, room: int) -> list[str]:
    """Columns that stand below one another for all tiers, as far as there is room."""
    tokens = fmt.tokens(tier.n_tokens)
    if tier.budget_tokens:
        tokens += f"/{fmt.tokens(tier.budget_tokens)}"
    sizes = f"{fmt.short_nbytes(tier.nbytes)}/{fmt.short_nbytes(tier.budget_bytes)}"
    figures = [
        f"{tokens:>{TOKENS_WIDTH}} tok",
        f"{sizes:>{BYTES_WIDTH}}",
        f"{fmt.percent(_share(tier)):>4}",
    ]
    while figures and sum(len(figure) + 1 for figure in figures) > room:
        figures.pop()
    return figures


def _spelled(tier: TierUse, width: int) -> str:
    tokens, noun = fmt.count(tier.n_tokens), "tokens"
    if tier.budget_tokens:
        tokens, noun = f"{tokens} of {fmt.count(tier.budget_tokens)}", "cells"
    sizes = fmt.nbytes_of(tier.nbytes, tier.budget_bytes)
    kept = fmt.counted(tier.n_entries, "sequence" if tier.name == "hot" else "snapshot")
    wordings = (
        f"{tokens} {noun} · {sizes} · {kept}",
        f"{tokens} {noun} · {sizes}",
        f"{tokens} {noun} · {sizes.replace(' of ', '/')}",
        f"{tokens} · {sizes}",
    )
    return longest(wordings, width)


def longest(wordings: Iterable[str], width: int) -> str:
    """The first of ever shorter wordings that fits; the last one where none does."""
    text = ""
    for text in wordings:
        if len(text) <= width:
            break
    return text
