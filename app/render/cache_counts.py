"""What the cache was good for: where the prompt came from, hits, moves, time saved."""

from collections.abc import Iterable
from datetime import datetime

from app.render import format as fmt
from app.render.cache_bars import LABEL_WIDTH, labelled, longest
from app.render.lines import Line, Run, clipped, indented, width_of, wrapped
from app.render.sanitize import visible
from engine.cache.report import CacheCounts, CacheNote
from engine.events import CacheChanged


def prefix_line(cache: CacheChanged | None, note: str | None, width: int) -> Line:
    """Where the shown prompt came from, in the longest wording that fits.

    `prefix  1,104 of 1,163: 900 hot, 204 cold, restored in 12 ms`

    Args:
        cache: The last count of the context's cells.
        note: Why less was reused than could have been.
        width: Cells of the line.
    """
    if cache is None or not cache.n_prompt:
        return labelled("prefix", fmt.NO_VALUE)
    said = longest(_wordings(cache), width - LABEL_WIDTH)
    runs = labelled("prefix", said, *([Run(f"  {visible(note)}", "muted")] if note else []))
    return clipped(runs, width)


def prefix_lines(cache: CacheChanged | None, note: str | None, width: int) -> list[Line]:
    """The same in full, in as many lines as it takes."""
    if cache is None or not cache.n_prompt:
        return [prefix_line(cache, note, width)]
    parts: list[Run] = [Run(next(iter(_wordings(cache))))]
    if note:
        parts.append(Run(f" ({visible(note)})", "muted"))
    return hanging("prefix", tuple(parts), width)


def hanging(label: str, value: Line, width: int) -> list[Line]:
    """A labelled value whose further lines stand below it."""
    first, *others = wrapped(value, max(width - LABEL_WIDTH, 8)) or [()]
    return [labelled(label, *first), *(labelled("", *other) for other in others)]


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
    return clipped(labelled("tokens", longest(wordings, width - LABEL_WIDTH)), width)


def moves_line(counts: CacheCounts, width: int) -> Line:
    """Snapshots that went from tier to tier, or away."""
    gone = ((counts.n_evictions, "evicted"),)
    refused = _parts((counts.n_refused, "refused"))
    wordings = (
        _parts((counts.n_promotions, "promoted"), (counts.n_demotions, "demoted"), *gone),
        _parts((counts.n_promotions, "up"), (counts.n_demotions, "down"), *gone),
    )
    between = ", " if wordings[0] and refused else ""
    moved = longest(wordings, width - LABEL_WIDTH - len(between) - len(refused))
    runs = labelled("moves", moved, between, Run(refused, "bad"))
    return clipped(runs if moved or refused else labelled("moves", "none"), width)


def prefetch_line(counts: CacheCounts, width: int) -> Line:
    """Snapshots that were brought into main memory before anyone asked."""
    if not counts.n_prefetches:
        return clipped(labelled("ahead", "nothing prefetched"), width)
    used, wasted = counts.n_prefetches_used, counts.n_prefetches_wasted
    text = f"{fmt.count(counts.n_prefetches)} prefetched: {used} used, {wasted} wasted"
    return clipped(labelled("ahead", text), width)


def note_line(note: CacheNote, width: int) -> Line:
    """One line of the log; a problem has a sign and a colour."""
    return clipped((*_when(note), _said(note)), width)


def note_lines(note: CacheNote, width: int) -> list[Line]:
    """The same in full, in as many lines as it takes."""
    when = _when(note)
    indent = width_of(when)
    first, *others = wrapped((_said(note),), max(width - indent, 8))
    return [(*when, *first), *indented(others, indent)]


def _when(note: CacheNote) -> Line:
    clock = datetime.fromtimestamp(note.at).strftime("%H:%M:%S")
    return (Run(clock, "muted"), Run(" ! " if note.is_problem else "   ", "warn"))


def _said(note: CacheNote) -> Run:
    return Run(visible(note.text.replace("\n", " ")), "warn" if note.is_problem else "")


def _wordings(cache: CacheChanged) -> Iterable[str]:
    """The same in fewer and fewer words."""
    n_reused, n_prompt = fmt.count(cache.n_reused), fmt.count(cache.n_prompt)
    whole, short = f"{n_reused} of {n_prompt}", f"{n_reused}/{n_prompt}"
    places = _parts((cache.n_hot, "hot"), (cache.n_warm, "warm"), (cache.n_cold, "cold"))
    if cache.n_reused and places:
        if cache.n_warm or cache.n_cold:
            elapsed = fmt.short_seconds(cache.restore_s)
            yield f"{whole}: {places}, restored in {elapsed}"
            yield f"{whole}: {places}, {elapsed}"
            yield f"{short}: {places}, {elapsed}"
        yield f"{whole}: {places}"
        yield f"{short}: {places}"
    else:
        yield f"reused {whole} {fmt.plural(cache.n_prompt, 'token')}"
    yield whole
    yield short


def _parts(*counted: tuple[int, str]) -> str:
    return ", ".join(f"{fmt.count(n)} {name}" for n, name in counted if n)
