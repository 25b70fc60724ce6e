"""Lines of tokens and a prefix tree over them: what lines share is there once."""

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
    """A state of tokens `start` to `end` of a line; its bytes lie in a tier.

    Where states can be sliced, those of a line follow one another and each holds its own stretch.
    Where they cannot, each begins at 0.
    """

    key: str
    """Name: hexadecimal, 16 characters; equal for equal namespace, line and start."""
    namespace: str
    """Key of the model, build and settings that it belongs to."""
    parent: str
    """Digest of the line's first `start` tokens; empty where `start` is 0."""
    line: str
    """Digest of the line's first `end` tokens."""
    start: int
    end: int
    packed: bytes
    """The tokens of its own stretch, `end - start` of them, as little-endian 32-bit integers: a
    tenth of the memory of numbers, and read from a file as they are."""
    nbytes: int
    """Size of the state as the backend gave it."""
    recompute_s: float = 0.0
    """Measured time of computing the stretch."""
    owners: frozenset[str] = field(default_factory=frozenset)
    is_pinned: bool = False
    n_uses: int = 0
    used_at: float = 0.0
    """Seconds since the epoch."""


def state_key(namespace: str, start: int, line: str) -> str:
    """The name of a state of a line from `start` on, in a namespace."""
    spelled = f"{namespace}:{start}:{line}".encode()
    return blake2b(spelled, digest_size=KEY_BYTES).hexdigest()


def state_of_line(
    namespace: str,
    line: bytes,
    start: int,
    *,
    nbytes: int,
    recompute_s: float = 0.0,
    used_at: float = 0.0,
) -> StoredState:
    """The state of a packed line from token `start` on, as nobody's."""
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


def part_of_state(
    state: StoredState, line: bytes, start: int, *, nbytes: int, share: float
) -> StoredState:
    """The state of a packed line from token `start` on, which is a `share` of another state."""
    return replace(
        state_of_line(state.namespace, line, start, nbytes=nbytes),
        recompute_s=state.recompute_s * share,
        owners=state.owners,
        is_pinned=state.is_pinned,
        n_uses=state.n_uses,
        used_at=state.used_at,
    )


def pack(tokens: Sequence[int]) -> bytes:
    """A line of tokens as little-endian 32-bit integers."""
    return struct.pack(f"<{len(tokens)}i", *tokens)


def unpack(line: bytes) -> tuple[int, ...]:
    """The tokens of a packed line."""
    return struct.unpack(f"<{len(line) // TOKEN_BYTES}i", line)


def line_digest(line: bytes) -> str:
    """The digest of a packed line: BLAKE2b, 32 hexadecimal characters."""
    return blake2b(line, digest_size=LINE_BYTES).hexdigest()


V = TypeVar("V")


class Node(Generic[V]):
    """A stretch of tokens behind its parent's; the way from the root spells a line."""

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
        """Tokens of the node's own stretch."""
        return len(self.edge) // TOKEN_BYTES

    @property
    def start(self) -> int:
        """Tokens in front of the node's own stretch."""
        return self.end - self.n_tokens


@dataclass(frozen=True, slots=True)
class Found(Generic[V]):
    """How far a line is known."""

    nodes: tuple[Node[V], ...]
    """The nodes on the way, root excluded; the last may agree in its first tokens only."""
    n_tokens: int
    """Leading tokens of the line that the tree spells."""

    @property
    def is_inside(self) -> bool:
        """Whether the way ends within the last node's stretch."""
        return bool(self.nodes) and self.nodes[-1].end > self.n_tokens


class RadixTree(Generic[V]):
    """Values at stretches of token lines, found by comparing the tokens themselves.

    Lines are packed (`pack`). No two children of a node begin with the same
    token. `n_locks` of a node is the number of locks on it and on all below it. A node that was
    removed keeps its parent, so that locks taken before can be given back. Not thread-safe.
    """

    def __init__(self) -> None:
        self.root: Node[V] = Node(None, b"", 0)
        self.n_tokens = 0
        """Tokens of all stretches together."""

    def match(self, line: bytes, *, below: Node[V] | None = None) -> Found[V]:
        """Find the longest known start of a line, from the root or from `below` a node."""
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
        """Put a value at the end of a line, splitting the edge where it leaves a known one.

        A value that is there is replaced; the lower half of a split edge keeps its value.
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
        """Cut a node at `at` tokens of its line and give the new upper half.

        The node itself becomes the lower half, so that whoever holds it still holds its end.
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
        """Protect a node and all above it from eviction, once more."""
        for each in self.way(node):
            each.n_locks += 1

    def unlock(self, node: Node[V]) -> None:
        """Take one lock back."""
        way = list(self.way(node))
        for each in way:
            assert each.n_locks > 0
            each.n_locks -= 1
        for each in way:
            self.tidy(each)

    def remove(self, node: Node[V]) -> list[Node[V]]:
        """Take a node and all below it out of the tree, locked or not, and give them."""
        assert node.parent is not None
        removed = [node, *self.below(node)]
        del node.parent.children[node.edge[:TOKEN_BYTES]]
        self.n_tokens -= sum(each.n_tokens for each in removed)
        self.tidy(node.parent)
        return removed

    def tidy(self, node: Node[V]) -> None:
        """Undo splits that no value needs: empty leaves go, an empty link joins its only child."""
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
        """The whole line that ends with a node."""
        return b"".join(each.edge for each in reversed(list(self.way(node))))

    def way(self, node: Node[V]) -> Iterator[Node[V]]:
        """A node and those above it, upwards, root excluded."""
        while node.parent is not None:
            yield node
            node = node.parent

    def below(self, node: Node[V]) -> Iterator[Node[V]]:
        """The nodes below one, parents before children."""
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
    """How many leading tokens an edge shares with a line from byte `at` on, found by halving."""
    low, high = 0, min(len(edge), len(line) - at) // TOKEN_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        here, there = low * TOKEN_BYTES, middle * TOKEN_BYTES
        if edge[here:there] == line[at + here : at + there]:
            low = middle
        else:
            high = middle - 1
    return low
