"""Taking in new states."""

from collections.abc import Sequence

from engine.cache.catalog import Kept, KeptNode, Payload, value
from engine.cache.core import Core
from engine.cache.radix import pack
from engine.errors import StateError

N_NEWEST = 4
"""Whole states that are kept of one line, the newest: the ends of two prompts and two replies, so
that the last two turns can be made anew."""


class Keeping:
    """Puts states where their line belongs, cutting what is there where lines part."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def put(
        self, tokens: Sequence[int], start: int, state: Payload, recompute_s: float, owner: str
    ) -> bool:
        """Do `TieredCache.put`."""
        line, catalog = pack(tokens), self._core.catalog
        self._core.look_at_memory()
        while True:
            with self._core.lock:
                nodes, n_kept = catalog.usable(line)
                _check_start(start, n_kept, can_slice=catalog.can_slice)
                if not self._wants(len(tokens) - n_kept):
                    self._core.mark((node for node in nodes if node.end <= n_kept), owner)
                    return False
                cut = self._uncut(nodes, n_kept)
                whole = None if cut is None else value(cut).payload
                n_upper = 0 if cut is None else n_kept - cut.start
            halves = None if whole is None else self._core.split_state(whole, n_upper)
            tail, share = self._tail(state, n_kept - start, len(tokens) - start)
            with self._core.lock:
                if self._has_changed(line, nodes, n_kept, cut, whole):
                    continue
                if cut is not None:
                    catalog.split(cut, n_kept, halves)
                is_kept = self._place(line, tail, recompute_s * share, owner)
            self._core.wake()
            return is_kept

    def _wants(self, n_new: int) -> bool:
        """Whether any tier takes states at all, and one of so many new tokens is worth it."""
        takes_any = self._core.settings.warm_bytes > 0 or self._core.disk is not None
        return takes_any and n_new >= max(self._core.settings.min_tokens, 1)

    def _uncut(self, nodes: Sequence[KeptNode], n_kept: int) -> KeptNode | None:
        """Give the node within whose stretch a line leaves the tree."""
        is_inside = self._core.catalog.can_slice and nodes and nodes[-1].end > n_kept
        return nodes[-1] if is_inside else None

    def _tail(self, state: Payload, n_known: int, n_tokens: int) -> tuple[Payload, float]:
        """Give the part of a state that is new, and its share of the tokens."""
        if not self._core.catalog.can_slice or n_known == 0:
            return state, 1.0
        return self._core.split_state(state, n_known)[1], 1 - n_known / n_tokens

    def _has_changed(
        self,
        line: bytes,
        nodes: Sequence[KeptNode],
        n_kept: int,
        cut: KeptNode | None,
        whole: Payload | None,
    ) -> bool:
        """Whether another thread changed what was cut or measured without the lock."""
        if self._core.catalog.usable(line) != (list(nodes), n_kept):
            return True
        return cut is not None and value(cut).payload is not whole

    def _place(self, line: bytes, state: Payload, recompute_s: float, owner: str) -> bool:
        catalog, now = self._core.catalog, self._core.now()
        nbytes = memoryview(state).nbytes
        kept = Kept("", nbytes, recompute_s, now, payload=state, came_at=now)
        node = catalog.place(line, kept)
        self._core.mark((each for each in catalog.tree.way(node) if each.value is not None), owner)
        if not catalog.can_slice:
            self._thin_out(node)
        self._core.shrink(spare=node)
        return node.value is not None

    def _thin_out(self, newest: KeptNode) -> None:
        """Drop older states of a line that no other line needs, since newer ones do more."""
        catalog, n_seen = self._core.catalog, 0
        for node in list(catalog.tree.way(newest)):
            if node.value is None:
                continue
            n_seen += 1
            if n_seen <= N_NEWEST or node.n_locks or node.value.is_pinned:
                continue
            if not catalog.is_branch(node):
                catalog.remove(node)


def _check_start(start: int, n_kept: int, *, can_slice: bool) -> None:
    if start > n_kept:
        raise StateError(
            f"The state begins at token {start} but only the {n_kept} tokens before it are kept: "
            f"save from token {n_kept} on."
        )
    if start and not can_slice:
        raise StateError(
            f"The state begins at token {start} but this model's states cannot be cut: save from "
            "token 0 on."
        )
