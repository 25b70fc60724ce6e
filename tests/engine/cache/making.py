"""States to put on disk."""

from collections.abc import Sequence
from dataclasses import replace

from engine.cache.namespace import Namespace
from engine.cache.segments import Segment, new_segment, pack

NAMESPACE = Namespace("ab" * 16, "/models/one.gguf", (("K type", "f16"), ("streams", "one")))
OTHER = Namespace("cd" * 16, "/models/two.gguf", (("K type", "q8_0"),))


def state_of(
    tokens: Sequence[int],
    start: int = 0,
    *,
    parent: Segment | None = None,
    namespace: Namespace = NAMESPACE,
    nbytes: int = 1000,
    recompute_s: float = 1.0,
    owners: tuple[str, ...] = ("chat:1",),
    is_pinned: bool = False,
    n_uses: int = 0,
    used_at: float = 1_700_000_000.0,
) -> Segment:
    """A segment of tokens from `start` on, after `parent` or one segment of all tokens before."""
    if start and parent is None:
        parent = state_of(tokens[:start], namespace=namespace)
    state = new_segment(namespace.key, pack(tokens[start:]), parent=parent, nbytes=nbytes)
    return replace(
        state,
        recompute_s=recompute_s,
        owners=frozenset(owners),
        is_pinned=is_pinned,
        n_uses=n_uses,
        used_at=used_at,
    )


def payload_of(state: Segment) -> bytes:
    """Give bytes that no other state of the tests has."""
    return (bytes.fromhex(state.key) * (state.nbytes // 8 + 1))[: state.nbytes]
