"""The tree of kept states, and the books of what lies where."""

from collections import Counter
from collections.abc import Iterator

from engine.cache.kept import Kept, KeptNode, Payload, upper_half
from engine.cache.radix import TOKEN_BYTES, RadixTree, StoredState, line_digest, state_key

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
        """Give the nodes whose states make up the longest known start of a line, and its length.

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
        """Give the nodes that hold a state, parents before children."""
        return (node for node in self.tree.nodes() if node.value is not None)

    def start(self, node: KeptNode) -> int:
        """Give the first token that a node's state holds."""
        return node.start if self.can_slice else 0

    def find(self, key: str) -> KeptNode | None:
        """Give the node of a key."""
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
        """Give up the copy in main memory; gives whether it was prefetched in vain."""
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
        """Give a node's state as a store on disk knows it."""
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
    """Give the state at a node that is known to hold one."""
    assert node.value is not None
    return node.value


def _from_file(state: StoredState, share: float) -> Kept:
    """Give what is known of a state from its file, of which `share` is its own part."""
    return Kept(
        key=state.key,
        nbytes=round(state.nbytes * share),
        recompute_s=state.recompute_s * share,
        used_at=state.used_at,
        owners=state.owners,
        n_uses=state.n_uses,
        is_pinned=state.is_pinned,
        file=state,
    )
