"""The tree as the files of earlier runs, and of other processes, make it."""

from collections.abc import Iterable

from engine.cache.catalog import Catalog
from engine.cache.kept import KeptNode
from engine.cache.radix import TOKEN_BYTES, StoredState, line_digest, state_key


def adopt(catalog: Catalog, states: Iterable[StoredState]) -> int:
    """Enter what a store lists, and give how many states could not be used.

    They may overlap, as a kill between writing halves and deleting the whole leaves them, or two
    processes that wrote the same tokens. One whose parent is missing, or whose digests are not
    those of its tokens, is spare.
    """
    ends: dict[str, KeptNode] = {"": catalog.tree.root}
    n_unusable = 0
    for state in sorted(states, key=lambda each: (each.start, each.end)):
        parent = ends.get(state.parent)
        edge = None if parent is None else _edge(catalog, state, parent)
        if parent is None or edge is None:
            catalog.spare[state.key] = None
            n_unusable += 1
        else:
            ends[state.line] = catalog.enter(state, edge, parent)
    catalog.order()
    return n_unusable


def _edge(catalog: Catalog, state: StoredState, parent: KeptNode) -> bytes | None:
    """Give a state's own tokens if it says of itself what is true."""
    n_tokens = state.end - state.start
    if parent.end != state.start or n_tokens < 1:
        return None
    if state.start and not catalog.can_slice:
        return None
    edge = state.packed
    if len(edge) != n_tokens * TOKEN_BYTES:
        return None
    line = line_digest(catalog.tree.line(parent) + edge)
    if line != state.line or state.key != state_key(catalog.namespace, state.start, line):
        return None
    return edge
