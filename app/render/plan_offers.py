"""Models of a list as lines: verdict, name, facts, and what each needs of what is free."""

from app.planning.offers import Offer
from app.planning.verdict import Verdict
from app.render import format as fmt
from app.render.lines import Line, Run, clipped, padded, spread, width_of
from app.render.plan_terms import VERDICT_SIGNS
from app.render.sanitize import visible

WORDS = {Verdict.FITS: "fits", Verdict.TIGHT: "tight", Verdict.NO: "no"}
LEGEND = "✓ fits · ! tight · ◐ with main memory · ✗ no"
SPILLS = "partly"
"""The word where main memory must help."""
NEED_WIDTH = 28
NAME_WIDTH = 26


def offer_line(offer: Offer, width: int, *, is_now: bool) -> Line:
    """One model: `✓ fits   needs 4.9 GiB of 12 GiB`, or what is wrong with it."""
    marker = Run("• " if is_now else "  ", "accent")
    name = Run(visible(offer.name), "strong" if not offer.problem else "muted")
    if offer.problem:
        return clipped((marker, name, Run(f"  {visible(offer.problem)}", "bad")), width)
    need = () if offer.verdict is None else _need(offer)
    left = padded((marker, name), NAME_WIDTH)
    room = width - NEED_WIDTH - width_of(left) - 3
    return spread((*left, Run(f"  {_facts(offer, room)}", "muted")), need, width)


def _facts(offer: Offer, room: int) -> str:
    """As many facts as have room."""
    text = ""
    for fact in filter(None, map(visible, offer.facts)):
        longer = f"{text} · {fact}" if text else fact
        if len(longer) > room:
            break
        text = longer
    return text


def _need(offer: Offer) -> Line:
    verdict = offer.verdict
    assert verdict is not None
    sign = VERDICT_SIGNS[verdict]
    word = SPILLS if offer.spills else WORDS[verdict]
    size = f"{fmt.nbytes(offer.needed_bytes)} of {fmt.nbytes(offer.free_bytes)}"
    style = "warn" if offer.spills else sign.style
    shape = "◐" if offer.spills else sign.text
    return padded((Run(f"{shape} {word:<7}", style), Run(f"{size:>20}")), NEED_WIDTH)
