"""Who answers what, in which order."""

from collections.abc import Iterator, Sequence
from math import gcd

from speed_peers.asked import Question
from speed_peers.catalogue import KVCHAT, PLAIN, SLOW, Mode


def planned(
    modes: Sequence[Mode], questions: Sequence[Question], *, pair: int, slow_prompts: int
) -> Iterator[tuple[Mode, Question]]:
    """Every question to every mode, one question after the other.

    The modes begin at another place for each question and run backwards in every second pair, so
    that a machine that grows slower favours nobody. Slow peers get the first prompts of each set.
    """
    seen: dict[str, int] = {}
    for number, question in enumerate(questions):
        place = seen.get(question.set_name, 0)
        seen[question.set_name] = place + 1
        asked = [mode for mode in modes if place < slow_prompts or mode.peer not in SLOW]
        for mode in turned(asked, number + pair, backwards=bool(pair % 2)):
            yield mode, question


def turned(modes: Sequence[Mode], by: int, *, backwards: bool) -> list[Mode]:
    """The modes from another one on, in either direction.

    Steps of about the golden section of their number (coprime to it) spread the first places.
    """
    if not modes:
        return []
    start = by * stride(len(modes)) % len(modes)
    order = [*modes[start:], *modes[:start]]
    return order[::-1] if backwards else order


def stride(n: int) -> int:
    """A step that visits all of `n` places before it comes back to the first."""
    step = max(1, round(0.618 * n))
    while gcd(step, n) != 1:
        step += 1
    return step


def plain_of(mode: Mode) -> str:
    """The key of the mode of the same program that drafts nothing."""
    return f"{mode.peer} {PLAIN}"


BASE = f"{KVCHAT} {PLAIN}"
"""Key of the mode that everything is compared with."""
