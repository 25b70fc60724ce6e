"""The tree of kept states, and the books of what lies where."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

from engine.cache.radix import (
    TOKEN_BYTES,
    Node,
    RadixTree,
    StoredState,
    line_digest,
    part_of_state,
    state_key,
    state_of_line,
)
from engine.cache.report import (
    CacheEntry,
    CacheReport,
    CacheSettings,
    CacheStats,
    TierName,
    TierUse,
)

Payload = bytes | memoryview
Split = Callable[[Payload, int], tuple[bytes, bytes]]
Span = tuple[int, int]
"""First token of a line, and the one after the last."""


def part_of(state: Payload, held: Span, wanted: Span, split: Split) -> Payload:
    """The part of a state of `held` tokens that holds those `wanted` that it has.

    Raises:
        StateError: the state is damaged, or cannot be cut.
    """
    (first, end), (start, stop) = held, wanted
    if stop < end:
        state = split(state, stop - first)[0]
    return split(state, start - first)[1] if start > first else state


@dataclass(slots=True, eq=False)
class Kept:
    """One state: of a node's own stretch where states can be sliced, else of its whole line."""

    state: StoredState
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
        return self.file is not None and self.file.key == self.state.key

    def change(self, **about: object) -> None:
        """Say something else of the state, by the names of `StoredState`."""
        self.state = replace(self.state, **about)  # type: ignore[arg-type]  # replace checks names


KeptNode = Node[Kept]
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
        self.unreferenced: dict[str, None] = {}
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
        return next((node for node in self.recent if value(node).state.key == key), None)

    def place(self, line: bytes, payload: Payload, *, recompute_s: float, now: float) -> KeptNode:
        """Put a new state at the end of a line whose start is there."""
        start = self.tree.match(line).n_tokens if self.can_slice else 0
        nbytes = memoryview(payload).nbytes
        state = state_of_line(
            self.namespace,
            line,
            start,
            nbytes=nbytes,
            recompute_s=recompute_s,
            used_at=now,
        )
        node = self.tree.insert(line, Kept(state))
        self._list(node)
        self.recent[node] = None
        self.keep(node, payload, now)
        return node

    def split(self, node: KeptNode, at: int, halves: Halves | None) -> KeptNode:
        """Cut a node and its state at a token of its line; `halves` where a copy is in memory."""
        lower, share = value(node), (at - node.start) / node.n_tokens
        line = self.tree.line(node)
        self.drop_payload(node)
        upper = self.tree.split(node, at)
        upper.value = self._cut(lower, line, at, share, halves)
        if lower.file is not None:
            self._needs[lower.file.key] += 1
        self.recent[upper] = None
        self.unwritten.pop(node, None)
        for each, payload in zip((upper, node), halves or (None, None), strict=True):
            self._list(each)
            if payload is not None:
                self._book(each, payload)
        return upper

    def _cut(self, lower: Kept, line: bytes, at: int, share: float, halves: Halves | None) -> Kept:
        """The state of the upper half of a stretch; `lower` is that of the lower half then.

        `share` is the upper half's part of the tokens; sizes are estimates without `halves`. A pin
        stays below, where it protects both.
        """
        whole, head = lower.state, line[: at * TOKEN_BYTES]
        nbytes = round(whole.nbytes * share) if halves is None else len(halves[0])
        rest = whole.nbytes - nbytes if halves is None else len(halves[1])
        upper = part_of_state(whole, head, whole.start, nbytes=nbytes, share=share)
        lower.state = part_of_state(whole, line, at, nbytes=rest, share=1 - share)
        return replace(lower, state=replace(upper, is_pinned=False))

    def keep(self, node: KeptNode, payload: Payload, now: float) -> None:
        """Note that a copy is in main memory now."""
        value(node).came_at = now
        self._book(node, payload)

    def drop_payload(self, node: KeptNode) -> bool:
        """Drop the copy in main memory; the result is whether it was prefetched in vain."""
        kept = value(node)
        if kept.payload is None:
            return False
        self.warm_bytes -= kept.state.nbytes
        del self.warm[node]
        kept.payload = None
        was_in_vain, kept.is_prefetched = kept.is_prefetched, False
        return was_in_vain

    def set_file(self, node: KeptNode, file: StoredState | None) -> None:
        """Note which file holds a state; the one before is unreferenced if no other needs it."""
        kept = value(node)
        before, kept.file = kept.file, file
        if file is not None:
            self._needs[file.key] += 1
            self.unreferenced.pop(file.key, None)
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
            if kept is not None and (kept.file is None or kept.state.key == file.key):
                self.set_file(each, file)
        if not self._needs[file.key]:
            self.unreferenced[file.key] = None

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

    def is_superseded(self, node: KeptNode) -> bool:
        """Whether a later state of the same line does all that this one does, but for its end."""
        return not self.can_slice and bool(node.children) and not self.is_branch(node)

    def superseded_keys(self) -> set[str]:
        """The keys of states that a later one supersedes."""
        return {value(node).state.key for node in self.recent if self.is_superseded(node)}

    def touch(self, node: KeptNode, now: float, *, owner: str = "", n_uses: int = 0) -> None:
        """Note that a state is used, and by whom."""
        state = value(node).state
        owners = state.owners | {owner} if owner else state.owners
        value(node).change(used_at=now, owners=owners, n_uses=state.n_uses + n_uses)
        self.used[node] = None
        del self.recent[node]
        self.recent[node] = None

    def order(self) -> None:
        """Bring the nodes into the order of their use, after entering them in another."""
        nodes = sorted(self.recent, key=lambda node: value(node).state.used_at)
        self.recent = dict.fromkeys(nodes)

    def enter(self, state: StoredState, edge: bytes, below: KeptNode) -> KeptNode:
        """Enter a state that a store lists, `edge` its tokens `below` where its parent ends.

        Stretches that are there already stay as they are, unless the file is their very own. A
        file that adds nothing is unreferenced.
        """
        found = self.tree.match(edge, below=below)
        if found.is_inside and self.can_slice:
            self.split(found.nodes[-1], found.n_tokens, None)
        if found.n_tokens < state.end or not self.can_slice:
            node = self.tree.insert(edge, Kept(state, file=state), below=below)
            self._needs[state.key] += 1
            self.recent[node] = None
            if self.start(node) != state.start:
                line, share = self.tree.line(node), node.n_tokens / (state.end - state.start)
                value(node).state = part_of_state(
                    state, line, node.start, nbytes=round(state.nbytes * share), share=share
                )
                self._list(node)
            return node
        node = self.tree.match(edge, below=below).nodes[-1]
        if value(node).state.key == state.key:
            self.set_file(node, state)
        else:
            self.unreferenced[state.key] = None
        return node

    def lose_file(self, key: str, *, is_wanted: bool) -> int:
        """Note that a file is gone; gives how many states are lost with it.

        Those with a copy in main memory are written anew only where that `is_wanted`.
        """
        n_lost = 0
        for node in [each for each in self.recent if _rests_on(each, key)]:
            kept = node.value
            if kept is None:
                continue  # it went with the one above
            if kept.payload is None:
                n_lost += len(self.remove(node))
            else:
                kept.wants_disk = kept.wants_disk and is_wanted
                self.set_file(node, None)
        self.unreferenced.pop(key, None)
        return n_lost

    def keys_in_use(self) -> set[str]:
        """The keys of files that may not go now: of what is locked, or what others rest on."""
        return {
            kept.file.key
            for node in self.recent
            if (kept := value(node)).file is not None
            and (node.n_locks or (self.can_slice and node.children and kept.payload is None))
        }

    def _book(self, node: KeptNode, payload: Payload) -> None:
        kept = value(node)
        kept.payload = payload
        if (nbytes := memoryview(payload).nbytes) != kept.state.nbytes:
            kept.change(nbytes=nbytes)
        self.warm[node] = None
        self.warm_bytes += nbytes

    def _list(self, node: KeptNode) -> None:
        if value(node).is_exact or not value(node).wants_disk:
            self.unwritten.pop(node, None)
        else:
            self.unwritten.setdefault(node, None)

    def _release(self, key: str) -> None:
        self._needs[key] -= 1
        if self._needs[key] <= 0:
            del self._needs[key]
            self.unreferenced[key] = None

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


def _rests_on(node: KeptNode, key: str) -> bool:
    file = value(node).file
    return file is not None and file.key == key


def adopt(catalog: Catalog, states: Iterable[StoredState]) -> int:
    """Enter what a store lists, and give how many states could not be used.

    They may overlap, as a kill between writing halves and deleting the whole leaves them, or two
    processes that wrote the same tokens. One whose parent is missing, or whose digests are not
    those of its tokens, is unreferenced.
    """
    ends: dict[str, KeptNode] = {"": catalog.tree.root}
    n_unusable = 0
    for state in sorted(states, key=lambda each: (each.start, each.end)):
        parent = ends.get(state.parent)
        edge = None if parent is None else _edge(catalog, state, parent)
        if parent is None or edge is None:
            catalog.unreferenced[state.key] = None
            n_unusable += 1
        else:
            ends[state.line] = catalog.enter(state, edge, parent)
    catalog.order()
    return n_unusable


def _edge(catalog: Catalog, state: StoredState, parent: KeptNode) -> bytes | None:
    """A state's own tokens if it says of itself what is true."""
    n_tokens = state.end - state.start
    if parent.end != state.start or n_tokens < 1 or len(state.packed) != n_tokens * TOKEN_BYTES:
        return None
    if state.start and not catalog.can_slice:
        return None
    line = line_digest(catalog.tree.line(parent) + state.packed)
    is_true = line == state.line and state.key == state_key(catalog.namespace, state.start, line)
    return state.packed if is_true else None


@dataclass(frozen=True, slots=True)
class CacheState:
    """What the tiers of one cache share; `lock` guards catalog and ledger."""

    catalog: Catalog
    ledger: CacheStats
    lock: threading.Lock
    settings: CacheSettings
    split_state: Split
    now: Callable[[], float]
    """Seconds since the epoch."""
    monotonic: Callable[[], float]
    """Seconds that never step back."""

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a line to the log."""
        with self.lock:
            self.ledger.note(text, is_problem=is_problem)


MAX_ENTRIES = 200
"""Entries of one report, those used last: it travels through a pipe several times a second."""


def report(catalog: Catalog, ledger: CacheStats, settings: CacheSettings) -> CacheReport:
    """Tiers, counts, the entries used last, and the log since the last report."""
    last = islice(reversed(catalog.recent), MAX_ENTRIES)
    return CacheReport(
        tiers=(_warm(catalog, settings), _cold(catalog, settings)),
        counts=ledger.counts,
        entries=tuple(_entry(node) for node in last),
        notes=ledger.take_notes(),
    )


def _warm(catalog: Catalog, settings: CacheSettings) -> TierUse:
    n_tokens = sum(node.end - catalog.start(node) for node in catalog.warm)
    return TierUse("warm", len(catalog.warm), n_tokens, catalog.warm_bytes, settings.warm_bytes)


def _cold(catalog: Catalog, settings: CacheSettings) -> TierUse:
    """Count states that lie on disk; of a file that holds more than its state, the state's part."""
    cold = [node for node in catalog.recent if value(node).file is not None]
    n_tokens = sum(node.end - catalog.start(node) for node in cold)
    nbytes = sum(value(node).state.nbytes for node in cold)
    return TierUse("cold", len(cold), n_tokens, nbytes, settings.cold_bytes)


def _entry(node: KeptNode) -> CacheEntry:
    kept = value(node)
    tiers: list[TierName] = ["warm"] if kept.payload is not None else []
    if kept.file is not None:
        tiers.append("cold")
    state = kept.state
    return CacheEntry(
        key=state.key,
        start=state.start,
        n_tokens=state.end,
        nbytes=state.nbytes,
        tiers=tuple(tiers),
        owners=tuple(sorted(state.owners)),
        is_pinned=state.is_pinned,
        n_uses=state.n_uses,
        used_at=state.used_at,
        recompute_s=state.recompute_s,
    )
