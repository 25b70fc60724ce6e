"""Whether two applications ever wrote one chat at the same time."""

from collections.abc import Sequence

from torture.journal import Line

ENDS = ("done", "failed", "stopped", "struck", "end")


def written_by_two(lives: Sequence[Sequence[Line]]) -> list[str]:
    """Give the chats that a reply was made in by two lives at once, each with when."""
    spans = [span for number, lines in enumerate(lives) for span in _spans(number, lines)]
    spans.sort(key=lambda span: span[2])
    found = []
    for at, (life, owner, start, end) in enumerate(spans):
        for other, other_owner, other_start, _ in spans[at + 1 :]:
            if other_start < end and other != life and other_owner == owner:
                found.append(f"{owner} was written by two at once ({other_start - start} ns in)")
    return found


def _spans(life: int, lines: Sequence[Line]) -> list[tuple[int, str, int, int]]:
    """Give life, owner, beginning and end of each reply; one without an end lasts to the last."""
    found: list[tuple[int, str, int, int]] = []
    asked: tuple[str, int] | None = None
    for line in lines:
        at, owner = line["at"], line.get("owner")
        assert isinstance(at, int)
        if asked is not None and (line["kind"] in ENDS or line is lines[-1]):
            found.append((life, asked[0], asked[1], at))
            asked = None
        if line["kind"] == "asked" and isinstance(owner, str) and owner:
            asked = owner, at
    return found
