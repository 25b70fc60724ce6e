"""What the tree holds at a node: where a state lies, and what it is good for."""

from dataclasses import dataclass

from engine.cache.radix import Node, StoredState

Payload = bytes | memoryview


@dataclass(slots=True, eq=False)
class Kept:
    """One state: of a node's own stretch where states can be sliced, else of its whole line."""

    key: str
    nbytes: int
    recompute_s: float
    used_at: float
    """Seconds since the epoch."""
    owners: frozenset[str] = frozenset()
    n_uses: int = 0
    is_pinned: bool = False
    payload: Payload | None = None
    """The copy in main memory."""
    file: StoredState | None = None
    """The file that holds it; one of another key holds a longer stretch, of which this is part."""
    came_at: float = 0.0
    """When the copy came into main memory; seconds since the epoch."""
    is_prefetched: bool = False
    """Whether it came on a guess, and nothing has used it since."""
    wants_disk: bool = True
    """Whether it is to be written: not once it had to give way to others."""

    @property
    def is_exact(self) -> bool:
        """Whether a file holds this very state."""
        return self.file is not None and self.file.key == self.key


KeptNode = Node[Kept]


def upper_half(kept: Kept, share: float, halves: tuple[bytes, bytes] | None) -> Kept:
    """Give the state of the upper half of a stretch, and leave the lower half in `kept`.

    `share` is the upper half's part of the tokens; sizes are estimates without `halves`. Keys are
    the caller's to set. A pin stays below, where it protects both.
    """
    nbytes = round(kept.nbytes * share) if halves is None else len(halves[0])
    upper = Kept(
        key="",
        nbytes=nbytes,
        recompute_s=kept.recompute_s * share,
        used_at=kept.used_at,
        owners=kept.owners,
        n_uses=kept.n_uses,
        payload=None,
        file=kept.file,
        came_at=kept.came_at,
        is_prefetched=kept.is_prefetched,
        wants_disk=kept.wants_disk,
    )
    kept.nbytes = kept.nbytes - nbytes if halves is None else len(halves[1])
    kept.recompute_s -= upper.recompute_s
    return upper
