"""Models of a list as lines: verdict, name, facts, and what each needs of what is free."""

from app.planning.offers import Offer
from app.planning.verdict import Verdict
from app.render import format as fmt
from app.render.lines import Line, Run, clipped, padded, spread
from app.render.plan_terms import VERDICT_SIGNS
from app.render.sanitize import visible

WORDS = {Verdict.FITS: "fits", Verdict.TIGHT: "tight", Verdict.NO: "no"}
SPILLS = "partly"
"""The word where main memory must help."""
NEED_WIDTH = 28
NAME_WIDTH = 26


def offer_line(offer: Offer, width: int, *, is_now: bool) -> Line:
    """One model: `✓ fits   needs 4.9 GiB of 12 GiB`, or what is wrong with it."""
    marker = Run("• " if is_now else "  ", "accent")
    name = Run(visible(offer.name), "strong" if not offer.problem else "muted")
    facts = " · ".join(visible(fact) for fact in offer.facts if fact)
    left: Line = (*padded((marker, name), NAME_WIDTH), Run(f"  {facts}", "muted"))
    if offer.problem:
        return clipped((marker, name, Run(f"  {visible(offer.problem)}", "bad")), width)
    if offer.verdict is None:
        return clipped(left, width)
    return spread(left, _need(offer), width)


def _need(offer: Offer) -> Line:
    verdict = offer.verdict
    assert verdict is not None
    sign = VERDICT_SIGNS[verdict]
    word = SPILLS if offer.spills else WORDS[verdict]
    size = f"{fmt.nbytes(offer.needed_bytes)} of {fmt.nbytes(offer.free_bytes)}"
    style = "warn" if offer.spills else sign.style
    shape = "◐" if offer.spills else sign.text
    return padded((Run(f"{shape} {word:<7}", style), Run(f"{size:>20}")), NEED_WIDTH)
