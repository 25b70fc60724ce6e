"""The tree of kept states, and the books of what lies where."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from engine.cache.radix import TOKEN_BYTES, Node, RadixTree, StoredState, line_digest, state_key
from engine.cache.report import CacheEntry, CacheReport, CacheSettings, Ledger, TierName, TierUse

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
    origin: str = ""
    """As `StoredState.origin`."""
    wants_disk: bool = True
    """Whether it is to be written: not once it had to give way to others."""

    @property
    def is_exact(self) -> bool:
        """Whether a file holds this very state."""
        return self.file is not None and self.file.key == self.key


KeptNode = Node[Kept]


def upper_half(kept: Kept, share: float, halves: tuple[bytes, bytes] | None) -> Kept:
    """The state of the upper half of a stretch, and leave the lower half in `kept`.

    `share` is the upper half's part of the tokens; sizes are estimates without `halves`. Keys are
    the caller's to set. A pin stays below, where it protects both.
    """
    nbytes = round(kept.nbytes * share) if halves is None else len(halves[0])
    recompute_s = kept.recompute_s * share
    upper = replace(
        kept, key="", nbytes=nbytes, recompute_s=recompute_s, is_pinned=False, payload=None
    )
    kept.nbytes = kept.nbytes - nbytes if halves is None else len(halves[1])
    kept.recompute_s -= upper.recompute_s
    return upper


Halves = tuple[bytes, bytes]


class Catalog:
    """Which states there are; moves nothing by itself and is not thread-safe.

    Where states can be sliced every node has a value, the state of its own stretch, and is usable
    because all above it are there: whatever loses its last copy takes all below with it. Where
    states are whole, nodes without a value are mere branches.
    """

    def __init__(self, namespace: str, *, can_slice: bool) -> None:
        self.namespace = namespace
        self.can_slice = can_slice
        self.tree: RadixTree[Kept] = RadixTree()
        self.warm: dict[KeptNode, None] = {}
        """Nodes with a copy in main memory."""
        self.warm_bytes = 0
        self.unwritten: dict[KeptNode, None] = {}
        """Nodes that want a file of their very own and have none, oldest first."""
        self.recent: dict[KeptNode, None] = {}
        """All nodes that hold a state, those used last at the end."""
        self.used: dict[KeptNode, None] = {}
        """Nodes whose use is not written down yet."""
        self.spare: dict[str, None] = {}
        """Keys of files that no node needs any more."""
        self._needs: Counter[str] = Counter()
        """How many nodes need a file, by its key."""

    def usable(self, line: bytes) -> tuple[list[KeptNode], int]:
        """The nodes whose states make up the longest known start of a line, and its length.

        The last stretch may go on beyond that length.
        """
        found = self.tree.match(line)
        if self.can_slice:
            return list(found.nodes), found.n_tokens
        for node in reversed(found.nodes):
            if node.value is not None and node.end <= found.n_tokens:
                return [node], node.end
        return [], 0

    def nodes(self) -> Iterator[KeptNode]:
        """The nodes that hold a state, parents before children."""
        return (node for node in self.tree.nodes() if node.value is not None)

    def start(self, node: KeptNode) -> int:
        """The first token that a node's state holds."""
        return node.start if self.can_slice else 0

    def find(self, key: str) -> KeptNode | None:
        """The node of a key."""
        return next((node for node in self.recent if value(node).key == key), None)

    def place(self, line: bytes, kept: Kept) -> KeptNode:
        """Put a new state at the end of a line whose start is there; its key is made here."""
        node = self.tree.insert(line, kept)
        self._name(node)
        self._list(node)
        self.recent[node] = None
        if kept.payload is not None:
            self._book(node, kept.payload)
        return node

    def split(self, node: KeptNode, at: int, halves: Halves | None) -> KeptNode:
        """Cut a node and its state at a token of its line; `halves` where a copy is in memory."""
        lower = value(node)
        share = (at - node.start) / node.n_tokens
        self.drop_payload(node)
        upper = self.tree.split(node, at)
        upper.value = upper_half(lower, share, halves)
        if lower.file is not None:
            self._needs[lower.file.key] += 1
        self.recent[upper] = None
        self.unwritten.pop(node, None)
        for each, payload in zip((upper, node), halves or (None, None), strict=True):
            self._name(each)
            self._list(each)
            if payload is not None:
                self._book(each, payload)
        return upper

    def keep(self, node: KeptNode, payload: Payload, now: float) -> None:
        """Note that a copy is in main memory now."""
        kept = value(node)
        kept.came_at = now
        self._book(node, payload)

    def drop_payload(self, node: KeptNode) -> bool:
        """Drop the copy in main memory; the result is whether it was prefetched in vain."""
        kept = value(node)
        if kept.payload is None:
            return False
        self.warm_bytes -= kept.nbytes
        del self.warm[node]
        kept.payload = None
        was_in_vain, kept.is_prefetched = kept.is_prefetched, False
        return was_in_vain

    def set_file(self, node: KeptNode, file: StoredState | None) -> None:
        """Note which file holds a node's state; the one before is spare if no other needs it."""
        kept = value(node)
        before, kept.file = kept.file, file
        if file is not None:
            self._needs[file.key] += 1
            self.spare.pop(file.key, None)
        if before is not None:
            self._release(before.key)
        self._list(node)

    def want_disk(self, node: KeptNode) -> None:
        """Let a state be written, with those that it needs, though they gave way before."""
        for each in reversed(list(self.tree.way(node) if self.can_slice else [node])):
            value(each).wants_disk = True
            self._list(each)

    def written(self, node: KeptNode, file: StoredState) -> None:
        """Note that a file was written for a node, which may have been split or dropped since."""
        for each in self.tree.way(node):
            kept = each.value
            if each.start < file.start or not (self.can_slice or each is node):
                break
            if kept is not None and (kept.file is None or kept.key == file.key):
                self.set_file(each, file)
        if not self._needs[file.key]:
            self.spare[file.key] = None

    def remove(self, node: KeptNode) -> list[Kept]:
        """Take a state out, with all below that need it, and give what was lost."""
        gone = self.tree.remove(node) if self.can_slice else [node]
        lost = [value(each) for each in gone]
        for each in gone:
            self._forget(each)
        if not self.can_slice:
            self.tree.tidy(node)
        return lost

    def has_exact_parent(self, node: KeptNode) -> bool:
        """Whether a file of this node could be used at the next start."""
        parent = node.parent
        if not self.can_slice or parent is None or parent.value is None:
            return True
        return parent.value.is_exact

    def is_branch(self, node: KeptNode) -> bool:
        """Whether several states follow this one directly, on lines that part behind it."""
        waiting, n_next = list(node.children.values()), 0
        while waiting:
            each = waiting.pop()
            if each.value is None:
                waiting.extend(each.children.values())
            else:
                n_next += 1
        return n_next > 1

    def is_idle(self, node: KeptNode) -> bool:
        """Whether a later state of the same line does all that this one does, but for its end."""
        return not self.can_slice and bool(node.children) and not self.is_branch(node)

    def touch(self, node: KeptNode, now: float) -> None:
        """Note that a state is used."""
        value(node).used_at = now
        self.used[node] = None
        del self.recent[node]
        self.recent[node] = None

    def order(self) -> None:
        """Bring the nodes into the order of their use, after entering them in another."""
        nodes = sorted(self.recent, key=lambda node: value(node).used_at)
        self.recent = dict.fromkeys(nodes)

    def stored(self, node: KeptNode) -> StoredState:
        """A node's state as a store on disk knows it."""
        kept, line = value(node), self.tree.line(node)
        start = self.start(node)
        return StoredState(
            key=kept.key,
            parent=line_digest(line[: start * TOKEN_BYTES]) if start else "",
            line=line_digest(line),
            start=start,
            end=node.end,
            packed=line[start * TOKEN_BYTES :],
            nbytes=kept.nbytes,
            recompute_s=kept.recompute_s,
            owners=kept.owners,
            is_pinned=kept.is_pinned,
            n_uses=kept.n_uses,
            used_at=kept.used_at,
            origin=kept.origin,
        )

    def enter(self, state: StoredState, edge: bytes, below: KeptNode) -> KeptNode:
        """Enter a state that a store lists, `edge` its tokens `below` where its parent ends.

        Stretches that are there already stay as they are, unless the file is their very own. A
        file that adds nothing is spare.
        """
        found = self.tree.match(edge, below=below)
        if found.is_inside and self.can_slice:
            self.split(found.nodes[-1], found.n_tokens, None)
        if found.n_tokens < state.end or not self.can_slice:
            n_new = state.end - found.n_tokens if self.can_slice else state.end
            node = self.tree.insert(
                edge, _from_file(state, n_new / (state.end - state.start)), below=below
            )
            self._needs[state.key] += 1
            self.recent[node] = None
            if self.start(node) != state.start:
                self._name(node)
                self._list(node)
            return node
        node = self.tree.match(edge, below=below).nodes[-1]
        if value(node).key == state.key:
            self.set_file(node, state)
        else:
            self.spare[state.key] = None
        return node

    def _name(self, node: KeptNode) -> None:
        start = self.start(node)
        digest = line_digest(self.tree.line(node))
        value(node).key = state_key(self.namespace, start, digest)

    def _book(self, node: KeptNode, payload: Payload) -> None:
        kept = value(node)
        kept.payload = payload
        kept.nbytes = memoryview(payload).nbytes
        self.warm[node] = None
        self.warm_bytes += kept.nbytes

    def _list(self, node: KeptNode) -> None:
        if value(node).is_exact or not value(node).wants_disk:
            self.unwritten.pop(node, None)
        else:
            self.unwritten.setdefault(node, None)

    def _release(self, key: str) -> None:
        self._needs[key] -= 1
        if self._needs[key] <= 0:
            del self._needs[key]
            self.spare[key] = None

    def _forget(self, node: KeptNode) -> None:
        self.drop_payload(node)
        self.set_file(node, None)
        self.unwritten.pop(node, None)
        self.used.pop(node, None)
        del self.recent[node]
        node.value = None


def value(node: KeptNode) -> Kept:
    """The state at a node that is known to hold one."""
    assert node.value is not None
    return node.value


def _from_file(state: StoredState, share: float) -> Kept:
    """What is known of a state from its file, of which `share` is its own part."""
    return Kept(
        key=state.key,
        nbytes=round(state.nbytes * share),
        recompute_s=state.recompute_s * share,
        used_at=state.used_at,
        owners=state.owners,
        n_uses=state.n_uses,
        is_pinned=state.is_pinned,
        origin=state.origin,
        file=state,
    )


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
    """A state's own tokens if it says of itself what is true."""
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


MAX_ENTRIES = 200
"""Entries of one report, those used last: it travels through a pipe several times a second."""


def report(catalog: Catalog, ledger: Ledger, settings: CacheSettings) -> CacheReport:
    """Tiers, counts, the entries used last, and the log since the last report."""
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
        origin=kept.origin,
    )
