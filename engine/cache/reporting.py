"""The warm and the cold tier in numbers."""

from itertools import islice

from engine.cache.catalog import Catalog, value
from engine.cache.kept import KeptNode
from engine.cache.report import CacheEntry, CacheReport, CacheSettings, Ledger, TierName, TierUse

MAX_ENTRIES = 200
"""Entries of one report, those used last: it travels through a pipe several times a second."""


def report(catalog: Catalog, ledger: Ledger, settings: CacheSettings) -> CacheReport:
    """Give tiers, counts, the entries used last, and the log since the last report."""
    last = islice(reversed(catalog.recent), MAX_ENTRIES)
    return CacheReport(
        tiers=(_warm(catalog, settings), _cold(catalog, settings)),
        counts=ledger.counts,
        entries=tuple(_entry(catalog, node) for node in last),
        notes=ledger.take_notes(),
    )


def _warm(catalog: Catalog, settings: CacheSettings) -> TierUse:
    n_tokens = sum(node.end - catalog.start(node) for node in catalog.warm)
    return TierUse("warm", len(catalog.warm), n_tokens, catalog.warm_bytes, settings.warm_bytes)


def _cold(catalog: Catalog, settings: CacheSettings) -> TierUse:
    """Count states that lie on disk; of a file that holds more than its state, the state's part."""
    cold = [node for node in catalog.recent if value(node).file is not None]
    n_tokens = sum(node.end - catalog.start(node) for node in cold)
    nbytes = sum(value(node).nbytes for node in cold)
    return TierUse("cold", len(cold), n_tokens, nbytes, settings.cold_bytes)


def _entry(catalog: Catalog, node: KeptNode) -> CacheEntry:
    kept = value(node)
    tiers: list[TierName] = ["warm"] if kept.payload is not None else []
    if kept.file is not None:
        tiers.append("cold")
    return CacheEntry(
        key=kept.key,
        start=catalog.start(node),
        n_tokens=node.end,
        nbytes=kept.nbytes,
        tiers=tuple(tiers),
        owners=tuple(sorted(kept.owners)),
        is_pinned=kept.is_pinned,
        n_uses=kept.n_uses,
        used_at=kept.used_at,
        recompute_s=kept.recompute_s,
    )
