"""Packed token sequences and a radix tree that stores shared prefixes once."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Generic, TypeVar

KEY_BYTES = 8
LINE_BYTES = 16
TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True)
class StoredState:
    """Metadata of the state of tokens `start` to `end` of a sequence.

    If states can be sliced, consecutive states make up a sequence. Otherwise `start` is 0.
    """

    key: str
    """Hash of namespace, `line` and start: 16 hexadecimal characters."""
    namespace: str
    """Key of its `Namespace`: model, build and settings."""
    parent: str
    """Digest of the sequence's first `start` tokens; empty if `start` is 0."""
    line: str
    """Digest of the sequence's first `end` tokens."""
    start: int
    end: int
    packed: bytes
    """Tokens `start` to `end` as little-endian 32-bit integers: a tenth of the memory of Python
    integers, and the format of the file."""
    nbytes: int
    """Size of the backend's state."""
    recompute_s: float = 0.0
    """Measured time of computing tokens `start` to `end`."""
    owners: frozenset[str] = field(default_factory=frozenset)
    is_pinned: bool = False
    n_uses: int = 0
    used_at: float = 0.0
    """Seconds since the epoch."""


def state_key(namespace: str, start: int, line: str) -> str:
    """Key of the state from `start` to the end of the sequence with the digest `line`."""
    text = f"{namespace}:{start}:{line}".encode()
    return blake2b(text, digest_size=KEY_BYTES).hexdigest()


def state_of_line(
    namespace: str,
    line: bytes,
    start: int,
    *,
    nbytes: int,
    recompute_s: float = 0.0,
    used_at: float = 0.0,
) -> StoredState:
    """The metadata of a packed sequence's state from token `start` on, without owners."""
    digest = line_digest(line)
    return StoredState(
        key=state_key(namespace, start, digest),
        namespace=namespace,
        parent=line_digest(line[: start * TOKEN_BYTES]) if start else "",
        line=digest,
        start=start,
        end=len(line) // TOKEN_BYTES,
        packed=line[start * TOKEN_BYTES :],
        nbytes=nbytes,
        recompute_s=recompute_s,
        used_at=used_at,
    )


def state_slice(
    state: StoredState, line: bytes, start: int, *, nbytes: int, share: float
) -> StoredState:
    """The metadata of a slice from token `start` on, a `share` of another state's tokens."""
    return replace(
        state_of_line(state.namespace, line, start, nbytes=nbytes),
        recompute_s=state.recompute_s * share,
        owners=state.owners,
        is_pinned=state.is_pinned,
        n_uses=state.n_uses,
        used_at=state.used_at,
    )


def pack(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian 32-bit integers."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpack(line: bytes) -> tuple[int, ...]:
    """The tokens of a packed sequence."""
    return struct.unpack(f"<{len(line) // TOKEN_BYTES}i", line)


def line_digest(line: bytes) -> str:
    """BLAKE2b digest of a packed sequence: 32 hexadecimal characters."""
    return blake2b(line, digest_size=LINE_BYTES).hexdigest()


V = TypeVar("V")


class Node(Generic[V]):
    """A tree node; the edges from the root to it concatenate to a token sequence."""

    __slots__ = ("children", "edge", "end", "n_locks", "parent", "value")

    def __init__(self, parent: "Node[V] | None", edge: bytes, end: int) -> None:
        self.parent = parent
        self.edge = edge
        self.end = end
        self.children: dict[bytes, Node[V]] = {}
        self.value: V | None = None
        self.n_locks = 0

    @property
    def n_tokens(self) -> int:
        """Number of tokens on the node's edge."""
        return len(self.edge) // TOKEN_BYTES

    @property
    def start(self) -> int:
        """Number of tokens before the node's edge."""
        return self.end - self.n_tokens


@dataclass(frozen=True, slots=True)
class Found(Generic[V]):
    """The longest prefix of a sequence in the tree."""

    nodes: tuple[Node[V], ...]
    """Nodes on the path, root excluded; the last edge may match only partly."""
    n_tokens: int
    """Number of leading tokens that are in the tree."""

    @property
    def is_inside(self) -> bool:
        """Whether the match ends within the last node's edge."""
        return bool(self.nodes) and self.nodes[-1].end > self.n_tokens


class RadixTree(Generic[V]):
    """Radix tree of values by packed token sequence (`pack`); not thread-safe.

    No two children of a node begin with the same token. A node's `n_locks` counts the locks on it
    and on its descendants. A removed node still refers to its parent, so that earlier locks can
    be released.
    """

    def __init__(self) -> None:
        self.root: Node[V] = Node(None, b"", 0)
        self.n_tokens = 0
        """Tokens on all edges."""

    def match(self, line: bytes, *, below: Node[V] | None = None) -> Found[V]:
        """Find the longest prefix of `line` in the tree, starting at the root or at `below`."""
        node = self.root if below is None else below
        n_tokens, at, nodes = node.end, 0, []
        while child := node.children.get(line[at : at + TOKEN_BYTES]):
            nodes.append(child)
            if not line.startswith(child.edge, at):
                n_tokens += n_tokens_shared(child.edge, line, at)
                break
            at += len(child.edge)
            n_tokens = child.end
            node = child
        return Found(tuple(nodes), n_tokens)

    def insert(self, line: bytes, value: V, *, below: Node[V] | None = None) -> Node[V]:
        """Set the value at the end of `line`, splitting an edge if the sequence diverges in it.

        Replaces an existing value; the lower half of a split edge retains its value.
        """
        top = self.root if below is None else below
        found = self.match(line, below=top)
        node = found.nodes[-1] if found.nodes else top
        if found.is_inside:
            node = self.split(node, found.n_tokens)
        rest = line[(found.n_tokens - top.end) * TOKEN_BYTES :]
        if rest:
            node = self._add(node, rest)
        node.value = value
        return node

    def split(self, node: Node[V], at: int) -> Node[V]:
        """Split a node `at` tokens from the root; return the new upper half.

        The node itself becomes the lower half, so references to it still mean the same end.
        """
        assert node.parent is not None
        assert node.start < at < node.end
        cut = (at - node.start) * TOKEN_BYTES
        upper: Node[V] = Node(node.parent, node.edge[:cut], at)
        node.parent.children[node.edge[:TOKEN_BYTES]] = upper
        node.parent = upper
        node.edge = node.edge[cut:]
        upper.children[node.edge[:TOKEN_BYTES]] = node
        upper.n_locks = node.n_locks
        return upper

    def lock(self, node: Node[V]) -> None:
        """Increment the lock counts of a node and its ancestors."""
        for each in self.path(node):
            each.n_locks += 1

    def unlock(self, node: Node[V]) -> None:
        """Release one lock."""
        path = list(self.path(node))
        for each in path:
            assert each.n_locks > 0
            each.n_locks -= 1
        for each in path:
            self.tidy(each)

    def remove(self, node: Node[V]) -> list[Node[V]]:
        """Remove a node and its descendants, locked or not; return them."""
        assert node.parent is not None
        removed = [node, *self.below(node)]
        del node.parent.children[node.edge[:TOKEN_BYTES]]
        self.n_tokens -= sum(each.n_tokens for each in removed)
        self.tidy(node.parent)
        return removed

    def tidy(self, node: Node[V]) -> None:
        """Remove empty leaves upwards, and merge an empty node with its only child."""
        while node.parent is not None and node.value is None and not node.n_locks:
            parent, name = node.parent, node.edge[:TOKEN_BYTES]
            if len(node.children) > 1 or parent.children.get(name) is not node:
                return
            if not node.children:
                del parent.children[name]
                self.n_tokens -= node.n_tokens
            else:
                (child,) = node.children.values()
                child.edge = node.edge + child.edge
                child.parent = parent
                parent.children[name] = child
            node = parent

    def line(self, node: Node[V]) -> bytes:
        """The packed sequence from the root to a node."""
        return b"".join(each.edge for each in reversed(list(self.path(node))))

    def path(self, node: Node[V]) -> Iterator[Node[V]]:
        """A node and its ancestors, upwards, root excluded."""
        while node.parent is not None:
            yield node
            node = node.parent

    def below(self, node: Node[V]) -> Iterator[Node[V]]:
        """The descendants of a node, parents before children."""
        waiting = list(node.children.values())
        while waiting:
            each = waiting.pop()
            yield each
            waiting.extend(each.children.values())

    def nodes(self) -> Iterator[Node[V]]:
        """All nodes, parents before children, root excluded."""
        return self.below(self.root)

    def _add(self, parent: Node[V], edge: bytes) -> Node[V]:
        node: Node[V] = Node(parent, edge, parent.end + len(edge) // TOKEN_BYTES)
        parent.children[edge[:TOKEN_BYTES]] = node
        self.n_tokens += node.n_tokens
        return node


def n_tokens_shared(edge: bytes, line: bytes, at: int) -> int:
    """Number of leading tokens that an edge shares with `line[at:]`, by binary search."""
    low, high = 0, min(len(edge), len(line) - at) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        here, there = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if edge[here:there] == line[at + here : at + there]:
            low = middle
        else:
            high = middle - 1
    return low
