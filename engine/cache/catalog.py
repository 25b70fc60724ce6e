"""Index of the cached states: a radix tree, and which tier holds each state."""

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
    state_key,
    state_of_line,
    state_slice,
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
"""Token indices of a sequence: first, and one past the last."""


def slice_state(state: Payload, held: Span, wanted: Span, split: Split) -> Payload:
    """Slice a state of the tokens `held` to those in `wanted`.

    Raises:
        StateError: the state is damaged or cannot be split.
    """
    (first, end), (start, stop) = held, wanted
    if stop < end:
        state = split(state, stop - first)[0]
    return split(state, start - first)[1] if start > first else state


@dataclass(slots=True, eq=False)
class CachedState:
    """A cached state: of the node's edge if states can be sliced, else of the whole sequence."""

    state: StoredState
    payload: Payload | None = None
    """The copy in RAM."""
    file: StoredState | None = None
    """The file that holds it; under another key, a longer range that includes this state."""
    loaded_at: float = 0.0
    """When the copy was put in RAM; seconds since the epoch."""
    is_prefetched: bool = False
    """Whether it was prefetched and is still unused."""
    should_write: bool = True
    """Whether it should be written to disk; False after it was evicted from there."""

    @property
    def is_exact(self) -> bool:
        """Whether a file holds exactly this state."""
        return self.file is not None and self.file.key == self.state.key

    def change(self, **about: object) -> None:
        """Set fields of `StoredState`."""
        self.state = replace(self.state, **about)  # type: ignore[arg-type]  # replace checks names


StateNode = Node[CachedState]
Halves = tuple[bytes, bytes]


class Catalog:
    """Index of the cached states; moves no data and is not thread-safe.

    If states can be sliced, every node's value is the state of its edge. It needs the states of
    all its ancestors, so a node that loses its last copy is removed with its descendants. If
    states are whole, nodes without a value are only branches.
    """

    def __init__(self, namespace: str, *, can_slice: bool) -> None:
        self.namespace = namespace
        self.can_slice = can_slice
        self.tree: RadixTree[CachedState] = RadixTree()
        self.warm: dict[StateNode, None] = {}
        """Nodes with a copy in RAM."""
        self.warm_bytes = 0
        self.unwritten: dict[StateNode, None] = {}
        """Nodes to be written to a file of exactly their state, oldest first."""
        self.recent: dict[StateNode, None] = {}
        """All nodes with a state, most recently used last."""
        self.used: dict[StateNode, None] = {}
        """Nodes whose use is not saved yet."""
        self.unreferenced: dict[str, None] = {}
        """Keys of files that no node uses."""
        self._n_users: Counter[str] = Counter()
        """Number of nodes that use a file, by its key."""

    def usable(self, line: bytes) -> tuple[list[StateNode], int]:
        """Nodes whose states cover the longest cached prefix, and its length in tokens.

        The last node's edge may extend past that length.
        """
        found = self.tree.match(line)
        if self.can_slice:
            return list(found.nodes), found.n_tokens
        for node in reversed(found.nodes):
            if node.value is not None and node.end <= found.n_tokens:
                return [node], node.end
        return [], 0

    def nodes(self) -> Iterator[StateNode]:
        """Nodes with a state, parents before children."""
        return (node for node in self.tree.nodes() if node.value is not None)

    def start(self, node: StateNode) -> int:
        """Index of the first token of a node's state."""
        return node.start if self.can_slice else 0

    def find(self, key: str) -> StateNode | None:
        """The node whose state has this key."""
        return next((node for node in self.recent if value(node).state.key == key), None)

    def place(self, line: bytes, payload: Payload, *, recompute_s: float, now: float) -> StateNode:
        """Add a new state at the end of a sequence whose prefix is in the tree."""
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
        node = self.tree.insert(line, CachedState(state))
        self._update_queue(node)
        self.recent[node] = None
        self.add_copy(node, payload, now)
        return node

    def split(self, node: StateNode, at: int, halves: Halves | None) -> StateNode:
        """Split a node and its state at token `at`; `halves` are the split copy in RAM, if any."""
        lower, share = value(node), (at - node.start) / node.n_tokens
        line = self.tree.line(node)
        self.drop_payload(node)
        upper = self.tree.split(node, at)
        upper.value = self._cut(lower, line, at, share, halves)
        if lower.file is not None:
            self._n_users[lower.file.key] += 1
        self.recent[upper] = None
        self.unwritten.pop(node, None)
        for each, payload in zip((upper, node), halves or (None, None), strict=True):
            self._update_queue(each)
            if payload is not None:
                self._set_payload(each, payload)
        return upper

    def _cut(
        self, lower: CachedState, line: bytes, at: int, share: float, halves: Halves | None
    ) -> CachedState:
        """Cut `lower` to the lower half and return the upper, which has `share` of the tokens.

        Sizes are estimates without `halves`. The pin stays on `lower`, where it protects both.
        """
        whole, head = lower.state, line[: at * TOKEN_BYTES]
        nbytes = round(whole.nbytes * share) if halves is None else len(halves[0])
        rest = whole.nbytes - nbytes if halves is None else len(halves[1])
        upper = state_slice(whole, head, whole.start, nbytes=nbytes, share=share)
        lower.state = state_slice(whole, line, at, nbytes=rest, share=1 - share)
        return replace(lower, state=replace(upper, is_pinned=False))

    def add_copy(self, node: StateNode, payload: Payload, now: float) -> None:
        """Record a copy in RAM."""
        value(node).loaded_at = now
        self._set_payload(node, payload)

    def drop_payload(self, node: StateNode) -> bool:
        """Drop the copy in RAM; return whether it was prefetched but never used."""
        cached = value(node)
        if cached.payload is None:
            return False
        self.warm_bytes -= cached.state.nbytes
        del self.warm[node]
        cached.payload = None
        was_wasted, cached.is_prefetched = cached.is_prefetched, False
        return was_wasted

    def set_file(self, node: StateNode, file: StoredState | None) -> None:
        """Set a state's file; the previous file becomes unreferenced if no other node uses it."""
        cached = value(node)
        before, cached.file = cached.file, file
        if file is not None:
            self._n_users[file.key] += 1
            self.unreferenced.pop(file.key, None)
        if before is not None:
            self._release(before.key)
        self._update_queue(node)

    def queue_write(self, node: StateNode) -> None:
        """Queue a state and the states it needs for writing, even if they were evicted before."""
        for each in reversed(list(self.tree.path(node) if self.can_slice else [node])):
            value(each).should_write = True
            self._update_queue(each)

    def written(self, node: StateNode, file: StoredState) -> None:
        """Record the file written for a node, which may have been split or dropped meanwhile."""
        for each in self.tree.path(node):
            cached = each.value
            if each.start < file.start or not (self.can_slice or each is node):
                break
            if cached is not None and (cached.file is None or cached.state.key == file.key):
                self.set_file(each, file)
        if not self._n_users[file.key]:
            self.unreferenced[file.key] = None

    def remove(self, node: StateNode) -> list[CachedState]:
        """Remove a state and the descendants that need it; return the removed states."""
        gone = self.tree.remove(node) if self.can_slice else [node]
        lost = [value(each) for each in gone]
        for each in gone:
            self._forget(each)
        if not self.can_slice:
            self.tree.tidy(node)
        return lost

    def has_exact_parent(self, node: StateNode) -> bool:
        """Whether a file of this node would be usable at the next start."""
        parent = node.parent
        if not self.can_slice or parent is None or parent.value is None:
            return True
        return parent.value.is_exact

    def is_branch(self, node: StateNode) -> bool:
        """Whether several states directly continue this one, on diverging sequences."""
        waiting, n_next = list(node.children.values()), 0
        while waiting:
            each = waiting.pop()
            if each.value is None:
                waiting.extend(each.children.values())
            else:
                n_next += 1
        return n_next > 1

    def is_superseded(self, node: StateNode) -> bool:
        """Whether a whole state has exactly one direct continuation."""
        return not self.can_slice and bool(node.children) and not self.is_branch(node)

    def superseded_keys(self) -> set[str]:
        """Keys of the superseded states."""
        return {value(node).state.key for node in self.recent if self.is_superseded(node)}

    def touch(self, node: StateNode, now: float, *, owner: str = "", n_uses: int = 0) -> None:
        """Record a use of a state and its owner."""
        state = value(node).state
        owners = state.owners | {owner} if owner else state.owners
        value(node).change(used_at=now, owners=owners, n_uses=state.n_uses + n_uses)
        self.used[node] = None
        del self.recent[node]
        self.recent[node] = None

    def order(self) -> None:
        """Sort `recent` by last use."""
        nodes = sorted(self.recent, key=lambda node: value(node).state.used_at)
        self.recent = dict.fromkeys(nodes)

    def enter(self, state: StoredState, edge: bytes, below: StateNode) -> StateNode:
        """Add a stored state; `edge` are its packed tokens `below` its parent's node.

        Ranges already in the tree are unchanged, unless the file is exactly theirs. A file that
        adds no tokens becomes unreferenced.
        """
        found = self.tree.match(edge, below=below)
        if found.is_inside and self.can_slice:
            self.split(found.nodes[-1], found.n_tokens, None)
        if found.n_tokens < state.end or not self.can_slice:
            node = self.tree.insert(edge, CachedState(state, file=state), below=below)
            self._n_users[state.key] += 1
            self.recent[node] = None
            if self.start(node) != state.start:
                line, share = self.tree.line(node), node.n_tokens / (state.end - state.start)
                value(node).state = state_slice(
                    state, line, node.start, nbytes=round(state.nbytes * share), share=share
                )
                self._update_queue(node)
            return node
        node = self.tree.match(edge, below=below).nodes[-1]
        if value(node).state.key == state.key:
            self.set_file(node, state)
        else:
            self.unreferenced[state.key] = None
        return node

    def lose_file(self, key: str, *, is_wanted: bool) -> int:
        """Record that a file is gone; return how many states are lost with it.

        States with a copy in RAM are written again only if `is_wanted`.
        """
        n_lost = 0
        for node in [each for each in self.recent if _uses_file(each, key)]:
            cached = node.value
            if cached is None:
                continue  # removed with its parent
            if cached.payload is None:
                n_lost += len(self.remove(node))
            else:
                cached.should_write = cached.should_write and is_wanted
                self.set_file(node, None)
        self.unreferenced.pop(key, None)
        return n_lost

    def keys_in_use(self) -> set[str]:
        """Keys of files that must not be deleted: of locked nodes, or that descendants need."""
        return {
            cached.file.key
            for node in self.recent
            if (cached := value(node)).file is not None
            and (node.n_locks or (self.can_slice and node.children and cached.payload is None))
        }

    def _set_payload(self, node: StateNode, payload: Payload) -> None:
        cached = value(node)
        cached.payload = payload
        if (nbytes := memoryview(payload).nbytes) != cached.state.nbytes:
            cached.change(nbytes=nbytes)
        self.warm[node] = None
        self.warm_bytes += nbytes

    def _update_queue(self, node: StateNode) -> None:
        if value(node).is_exact or not value(node).should_write:
            self.unwritten.pop(node, None)
        else:
            self.unwritten.setdefault(node, None)

    def _release(self, key: str) -> None:
        self._n_users[key] -= 1
        if self._n_users[key] <= 0:
            del self._n_users[key]
            self.unreferenced[key] = None

    def _forget(self, node: StateNode) -> None:
        self.drop_payload(node)
        self.set_file(node, None)
        self.unwritten.pop(node, None)
        self.used.pop(node, None)
        del self.recent[node]
        node.value = None


def value(node: StateNode) -> CachedState:
    """The state of a node that has one."""
    assert node.value is not None
    return node.value


def _uses_file(node: StateNode, key: str) -> bool:
    file = value(node).file
    return file is not None and file.key == key


def adopt(catalog: Catalog, states: Iterable[StoredState]) -> int:
    """Add a store's states; return how many could not be used.

    States may overlap if a process was killed between writing halves and deleting the whole, or
    if two processes wrote the same tokens. A state without its parent, or whose digests differ
    from its tokens', becomes unreferenced.
    """
    ends: dict[str, StateNode] = {"": catalog.tree.root}
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


def _edge(catalog: Catalog, state: StoredState, parent: StateNode) -> bytes | None:
    """A state's packed tokens; None if its fields contradict them or its parent."""
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
    """State shared by the tiers of one cache; `lock` guards catalog and ledger."""

    catalog: Catalog
    ledger: CacheStats
    lock: threading.Lock
    settings: CacheSettings
    split_state: Split
    now: Callable[[], float]
    """Seconds since the epoch."""
    monotonic: Callable[[], float]
    """Monotonic seconds."""

    def note(self, text: str, *, is_problem: bool = False) -> None:
        """Add a log message."""
        with self.lock:
            self.ledger.note(text, is_problem=is_problem)


MAX_ENTRIES = 200
"""Most recently used entries per report, which is piped several times a second."""


def report(catalog: Catalog, ledger: CacheStats, settings: CacheSettings) -> CacheReport:
    """Tiers, counts, the most recently used entries, and new log messages."""
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
    """The cold tier's use; of a file that holds more than a state, only the state's share."""
    cold = [node for node in catalog.recent if value(node).file is not None]
    n_tokens = sum(node.end - catalog.start(node) for node in cold)
    nbytes = sum(value(node).state.nbytes for node in cold)
    return TierUse("cold", len(cold), n_tokens, nbytes, settings.cold_bytes)


def _entry(node: StateNode) -> CacheEntry:
    cached = value(node)
    tiers: list[TierName] = ["warm"] if cached.payload is not None else []
    if cached.file is not None:
        tiers.append("cold")
    state = cached.state
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
