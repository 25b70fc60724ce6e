"""How often drafts were right, apart by who guessed and by the place in the draft."""

from collections.abc import Mapping, Sequence

from app.render import format as fmt
from app.render.gauges import GraphSymbols, history
from app.render.lines import EMPTY, Line, Run, width_of
from app.render.tint import source_style
from engine.events import PositionCounts, SourceCounts

_BETWEEN = Run(" · ", "muted")


def source_shares(by_source: Mapping[str, SourceCounts], width: int) -> list[Line]:
    """Accepted of verified tokens of each source, the most useful first: `suffix 301/380 79%`.

    Few tokens have no percentage: `suffix 2/3`. A source that does not fit into the line any more
    begins the next one.
    """
    lines: list[Line] = [EMPTY]
    for name, counts in sorted(by_source.items(), key=lambda item: -item[1].n_accepted):
        figures = f" {fmt.count(counts.n_accepted)}/{fmt.count(counts.n_verified)}"
        part: Line = (Run(name, source_style(name)), Run(figures))
        if counts.n_verified >= fmt.MANY:
            rate = fmt.acceptance(counts.n_accepted, counts.n_verified)
            part = (*part, Run(f" {rate}", "strong"))
        joined = (*lines[-1], _BETWEEN, *part) if lines[-1] else part
        if lines[-1] and width_of(joined) > width:
            lines.append(part)
        else:
            lines[-1] = joined
    return lines if by_source else [(Run(fmt.NO_VALUE),)]


def position_shares(
    by_position: Sequence[PositionCounts], width: int, symbols: GraphSymbols
) -> Line:
    """How often the first, second, third ... token of a draft is right when those before it are.

    Columns first, then as many numbers as there is room for: `90% 50% 3/4`.
    """
    rates = [fmt.share(place.n_accepted, place.n_examined) for place in by_position]
    if not rates:
        return (Run(fmt.NO_VALUE),)
    bars = history(rates, max(width, 1), symbols, top=1.0)
    room = width - len(rates) - 2
    numbers = ""
    for place in by_position:
        text = fmt.acceptance(place.n_accepted, place.n_examined)
        if len(numbers) + 1 + len(text) > room:
            break
        numbers += f" {text}"
    return (*bars, Run(f" {numbers}", "muted")) if numbers else bars
