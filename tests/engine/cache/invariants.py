"""What is true of a cache at every moment."""

from collections import Counter
from dataclasses import replace

from engine.cache.prefix_cache import PrefixCache
from engine.cache.radix import state_of_line, unpack
from tests.engine.cache.made_up import NAMESPACE, MemoryDisk, state_of

OF_USE = ("recompute_s", "owners", "is_pinned", "n_uses", "used_at")


def check(cache: PrefixCache, disk: MemoryDisk | None) -> None:
    """Compare the books with what they are about."""
    catalog = cache._catalog
    with cache._lock:
        needs: Counter[str] = Counter()
        n_bytes = 0
        for node in catalog.tree.nodes():
            kept, line = node.value, catalog.tree.line(node)
            if kept is None:
                assert not catalog.can_slice
                assert node.n_locks or len(node.children) > 1
                continue
            start = catalog.start(node)
            state = kept.state
            assert state == replace(
                state_of_line(NAMESPACE.key, line, start, nbytes=state.nbytes),
                **{name: getattr(state, name) for name in OF_USE},
            )
            assert kept.payload is not None or kept.file is not None
            assert (node in catalog.warm) == (kept.payload is not None)
            if kept.payload is not None:
                assert bytes(kept.payload) == state_of(unpack(line), start)
                n_bytes += len(kept.payload)
            if kept.file is not None:
                needs[kept.file.key] += 1
                assert kept.file.start <= start <= node.end <= kept.file.end
                own = unpack(kept.file.packed)[start - kept.file.start : node.end - kept.file.start]
                assert own == unpack(line)[start:]
            assert (node in catalog.unwritten) == (kept.should_write and not kept.is_exact)
        assert n_bytes == catalog.warm_bytes
        assert needs == catalog._n_users
        assert not set(needs) & set(catalog.unreferenced)
        in_tree = set(catalog.tree.nodes())
        assert set(catalog.recent) == set(catalog.nodes())
        for books in (catalog.warm, catalog.unwritten, catalog.used):
            assert set(books) <= in_tree
    if disk is not None:
        for state, payload in list(disk.files.values()):
            assert payload == state_of(unpack(state.packed))
