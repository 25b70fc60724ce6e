"""The cache panel: how full the tiers are, and what they brought."""

from app import format as fmt
from app.chat.snapshot import CockpitSnapshot, Phase
from app.render.charts import GraphSymbols, bar
from app.render.lines import LABEL_WIDTH, Line, Run, clipped, hanging, labelled, longest
from app.render.reuse import prefix_line, prefix_lines
from app.sanitize import visible
from engine.cache.report import CacheCounts, CacheNote, TierName, TierUse

TIERS: tuple[TierName, ...] = ("hot", "warm", "cold")
MIN_BAR = 8
"""Cells under which a bar says nothing."""
TOKENS_WIDTH = 10
BYTES_WIDTH = 11

Tier = TierUse | TierName
"""How full a tier is, or its name alone where nothing is known yet."""

N_BLOCKS = 6
"""Lines of the tiers where each has two."""


def tiers_of(snapshot: CockpitSnapshot) -> tuple[Tier, ...]:
    """The three tiers; of one sequence, the hot one as the context counts it round by round."""
    hot = _hot(snapshot)
    if snapshot.server:
        return (hot or "hot",)
    told: dict[TierName, Tier] = {name: name for name in TIERS}
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
    drawn = tier_bar(tier.name, _share(tier), max(room, 1), symbols)
    runs: list[Run] = [tier_label(tier.name), *drawn]
    runs += (Run(f" {figure}") for figure in figures)
    return clipped(tuple(runs), width)


def tier_block(tier: Tier, width: int, symbols: GraphSymbols) -> list[Line]:
    """Two lines: name, bar and share; below them the counts in full."""
    if isinstance(tier, str) or not _has_budget(tier):
        return [tier_line(tier, width, symbols), ()]
    share = _share(tier)
    percent = f"{fmt.percent(share):>5}"
    above = (
        tier_label(tier.name),
        *tier_bar(tier.name, share, max(width - LABEL_WIDTH - len(percent), 1), symbols),
        Run(percent),
    )
    below = (Run(" " * LABEL_WIDTH), Run(_spelled(tier, width - LABEL_WIDTH)))
    return [clipped(above, width), clipped(below, width)]


def _hot(snapshot: CockpitSnapshot) -> TierUse | None:
    cache = snapshot.cache
    n_cells = cache.n_cells if cache else snapshot.n_ctx
    allocated = sum(b.nbytes for b in snapshot.buffers if b.kind == "KV" and b.owner == "target")
    kv_bytes = cache.kv_bytes if cache else allocated
    n_used = cache.n_used if cache else 0
    if n_cells and snapshot.server:
        return TierUse("hot", 1 if n_used else 0, n_used, 0, 0, n_cells)
    if not n_cells or not kv_bytes:
        return None
    return TierUse(
        "hot", 1 if n_used else 0, n_used, round(kv_bytes * n_used / n_cells), kv_bytes, n_cells
    )


def _has_budget(tier: TierUse) -> bool:
    return tier.budget_bytes > 0 or bool(tier.budget_tokens)


def _share(tier: TierUse) -> float:
    if tier.budget_tokens:
        return tier.n_tokens / tier.budget_tokens
    return tier.nbytes / tier.budget_bytes


def tier_label(name: str) -> Run:
    """The name of a tier in its colour."""
    return Run(f"{name:<{LABEL_WIDTH}}", f"tier-{name}")


def _without_bar(name: str, value: str, width: int) -> Line:
    return clipped((tier_label(name), Run(value, "muted")), width)


def tier_bar(name: TierName, share: float, width: int, symbols: GraphSymbols) -> Line:
    """A bar in the tier's colour; free cells differ from used ones in shape too."""
    used = f"tier-{name}"
    runs = bar(share, width, symbols)
    return tuple(Run(run.text, used if run.style == "bar-used" else run.style) for run in runs)


def _figures(tier: TierUse, room: int) -> list[str]:
    """Columns that stand below one another for all tiers, as far as there is room."""
    tokens = fmt.tokens(tier.n_tokens)
    if tier.budget_tokens:
        tokens += f"/{fmt.tokens(tier.budget_tokens)}"
    sizes = f"{fmt.short_nbytes(tier.nbytes)}/{fmt.short_nbytes(tier.budget_bytes)}"
    figures = [
        f"{tokens:>{TOKENS_WIDTH}} tok",
        *([f"{sizes:>{BYTES_WIDTH}}"] if tier.budget_bytes else []),
        f"{fmt.percent(_share(tier)):>4}",
    ]
    while figures and sum(len(figure) + 1 for figure in figures) > room:
        figures.pop()
    return figures


def _spelled(tier: TierUse, width: int) -> str:
    tokens, noun = fmt.count(tier.n_tokens), "tokens"
    if tier.budget_tokens:
        tokens, noun = f"{tokens} of {fmt.count(tier.budget_tokens)}", "cells"
    if not tier.budget_bytes:
        return f"{tokens} {noun}"
    sizes = fmt.nbytes_of(tier.nbytes, tier.budget_bytes)
    kept = fmt.counted(tier.n_entries, "state")
    wordings = (
        f"{tokens} {noun} · {sizes} · {kept}",
        f"{tokens} {noun} · {sizes}",
        f"{tokens} {noun} · {sizes.replace(' of ', '/')}",
        f"{tokens} · {sizes}",
    )
    return longest(wordings, width)


def reuse_line(counts: CacheCounts, width: int) -> Line:
    """Prompts that memory or disk helped or could not help, and the time that it saved.

    `reuse   14 restored · 2 missed · +12 s saved`; a dash where computing was never timed.
    """
    said = f"{fmt.count(counts.n_hits)} restored · {fmt.count(counts.n_misses)} missed"
    if not counts.n_hits:
        return clipped(labelled("reuse", said), width)
    return clipped(labelled("reuse", f"{said} · ", *_saved(counts.saved_s)), width)


def _saved(saved_s: float | None) -> Line:
    if saved_s is not None and saved_s < 0:
        return (Run(fmt.seconds(-saved_s), "bad"), Run(" lost"))
    return (Run(fmt.gain(saved_s), "" if saved_s is None else "good"), Run(" saved"))


def tokens_line(counts: CacheCounts, width: int) -> Line:
    """Where the tokens of all prompts came from."""
    places = (
        (counts.n_hot_tokens, "hot"),
        (counts.n_warm_tokens, "warm"),
        (counts.n_cold_tokens, "cold"),
        (counts.n_computed_tokens, "computed"),
    )
    told = [(n, name) for n, name in places if n]
    n_all = sum(n for n, _ in told)
    wordings = (
        ", ".join(f"{fmt.tokens(n)} {name}" for n, name in told) or fmt.NO_VALUE,
        " ".join(f"{fmt.percent(n / n_all)} {name}" for n, name in told),
    )
    return clipped(labelled("total", longest(wordings, width - LABEL_WIDTH)), width)


def moves_line(counts: CacheCounts, width: int) -> Line:
    """Snapshots that went from tier to tier, or away."""
    gone = ((counts.n_evictions, "evicted"),)
    refused = fmt.listed((counts.n_refused, "refused"))
    wordings = (
        fmt.listed((counts.n_promotions, "promoted"), (counts.n_demotions, "demoted"), *gone),
        fmt.listed((counts.n_promotions, "up"), (counts.n_demotions, "down"), *gone),
    )
    between = ", " if wordings[0] and refused else ""
    moved = longest(wordings, width - LABEL_WIDTH - len(between) - len(refused))
    runs = labelled("moves", moved, between, Run(refused, "bad"))
    return clipped(runs if moved or refused else labelled("moves", "none"), width)


def prefetch_line(counts: CacheCounts, width: int) -> Line:
    """Snapshots that were brought into main memory before anyone asked."""
    if not counts.n_prefetches:
        return clipped(labelled("ahead", "nothing prefetched"), width)
    text = f"{fmt.count(counts.n_prefetches)} prefetched"
    return clipped(labelled("ahead", text), width)


def note_line(note: CacheNote, width: int) -> Line:
    """One line of the log; a problem has a sign and a colour."""
    return clipped((*_when(note), _said(note)), width)


def note_lines(note: CacheNote, width: int) -> list[Line]:
    """The same in full, in as many lines as it takes."""
    return hanging(_when(note), (_said(note),), width)


def _when(note: CacheNote) -> Line:
    when = fmt.moment(note.at)
    clock = fmt.NO_VALUE if when is None else when.strftime("%H:%M:%S")
    return (Run(clock, "muted"), Run(" ! " if note.is_problem else "   ", "warn"))


def _said(note: CacheNote) -> Run:
    return Run(visible(note.text.replace("\n", " ")), "warn" if note.is_problem else "")


def cache_lines(
    snapshot: CockpitSnapshot,
    width: int,
    symbols: GraphSymbols = "block",
    *,
    height: int | None = None,
) -> list[Line]:
    """The rows of the panel: what matters most first, the rest as far as there is room.

    Args:
        snapshot: What to show; nothing is claimed before the cache's first report.
        width: Cells inside the frame.
        symbols: Which characters to draw with.
        height: Lines inside the frame; None shows everything.
    """
    tiers = tiers_of(snapshot)
    below = _below(snapshot, width)
    is_tall = height is None or height >= N_BLOCKS + len(below)
    if is_tall:
        bars = [line for tier in tiers for line in tier_block(tier, width, symbols)]
        spare = None if height is None else height - N_BLOCKS - len(below)
        prefix = _prefix_lines(snapshot, width)
        if spare is None or len(prefix) <= 1 + spare:
            below = [*prefix, *below[1:]]
    else:
        bars = [tier_line(tier, width, symbols) for tier in tiers]
    return [clipped(line, width) for line in [*bars, *below][:height]]


def _prefix_lines(snapshot: CockpitSnapshot, width: int, *, is_short: bool = False) -> list[Line]:
    """Where the prompt came from; while one is read, what was found of it and not the last one."""
    if snapshot.phase is Phase.PREFILL and not snapshot.server:
        n_reused = snapshot.prefill.n_reused if snapshot.prefill else None
        found = "reading" if n_reused is None else f"reading, {fmt.count(n_reused)} reused"
        return [clipped(labelled("prefix", found), width)]
    if is_short:
        return [prefix_line(snapshot.prompt, width)]
    return prefix_lines(snapshot.prompt, width)


def _below(snapshot: CockpitSnapshot, width: int) -> list[Line]:
    """One line each, the most useful first."""
    lines = [_prefix_lines(snapshot, width, is_short=True)[0]]
    counts = snapshot.tiers.counts if snapshot.tiers is not None and not snapshot.server else None
    if counts is not None:
        lines.append(reuse_line(counts, width))
    if snapshot.cache_log and snapshot.cache_log[-1].is_problem:
        # What else happened stands in the log of the cache's own screen.
        lines.append(labelled("log", *note_line(snapshot.cache_log[-1], width)))
    if counts is not None:
        lines += [render(counts, width) for render in (moves_line, prefetch_line, tokens_line)]
    return lines
