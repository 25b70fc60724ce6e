"""What is kept of a chat in other cache types, requantised where its own types have less.

A chat whose cache type was changed finds its tokens here: the states of the same model, build and
settings that differ in the types of keys and values only. They are converted when a reply needs
them, not before, and kept from then on as states of the new types that name their origin. Only
states of the chat itself are taken: what a coarse type lost reaches no other chat this way.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from engine.backends.base import Backend
from engine.cache.books import part_of
from engine.cache.catalog import Catalog, KeptNode, Payload, adopt, value
from engine.cache.namespace import CacheTypes, Namespace, differ_in_types_only
from engine.cache.prefix_cache import PrefixCache
from engine.cache.radix import pack
from engine.cache.snapshot_folder import ColdFolder
from engine.clock import Stopwatch
from engine.errors import CacheStoreError, StateError


@dataclass(frozen=True, slots=True)
class Requantised:
    """What was converted of one line."""

    origin: CacheTypes
    """The coarsest types that it went through."""
    into: CacheTypes
    n_tokens: int
    elapsed_s: float

    @property
    def sentence(self) -> str:
        """What was done and what it costs, for the user."""
        said = (
            f"{self.n_tokens:,} tokens were requantised from {self.origin.title} to "
            f"{self.into.title} in {1000 * self.elapsed_s:.0f} ms instead of being read again"
        )
        if self.origin.loses(self.into):
            return f"{said}. What {self.origin.title} lost of them stays lost."
        return f"{said}. They are as precise as {self.into.title} is."


@dataclass(frozen=True, slots=True)
class _Source:
    """The states of one other namespace."""

    namespace: Namespace
    types: CacheTypes
    catalog: Catalog


@dataclass(frozen=True, slots=True)
class _Found:
    source: _Source
    nodes: Sequence[KeptNode]
    n_tokens: int


class OtherTypes:
    """The states of other cache types in a folder, as they were when the model was loaded.

    Safe for several threads: one line is converted at a time.
    """

    def __init__(self, folder: ColdFolder, namespace: Namespace, backend: Backend) -> None:
        self._folder = folder
        self._namespace = namespace
        self._backend = backend
        self._into = CacheTypes.of(namespace)
        self._sources: tuple[_Source, ...] | None = None
        self._lock = threading.Lock()
        self._has_complained = False

    def bring(
        self, tiers: PrefixCache, tokens: Sequence[int], owner: str, *, beyond: int
    ) -> Requantised | None:
        """Put what other types hold of a chat's line into its own tiers.

        What came of it, and why nothing did where a layout forbids it, is a line of their log.

        Args:
            tiers: Of the types that the context has now.
            tokens: The line.
            owner: The chat.
            beyond: Tokens that are there already; fewer are not looked for.
        """
        if not owner or self._into is None:
            return None
        with self._lock:
            try:
                found = self._longest(pack(tokens), owner)
                if found is None or found.n_tokens <= beyond:
                    return None
                done = self._put(tiers, tokens, owner, found)
            except (StateError, CacheStoreError) as error:
                self._complain(tiers, str(error))
                return None
        if done is not None:
            tiers.note(done.sentence)
        return done

    def _longest(self, line: bytes, owner: str) -> _Found | None:
        """The source with most of a line; of several with as much, the most precise."""
        found = []
        for source in self._listed():
            nodes, n_tokens = source.catalog.usable(line)
            while nodes and owner not in value(nodes[-1]).owners:
                n_tokens = source.catalog.start(nodes.pop())
            if nodes:
                found.append(_Found(source, nodes, n_tokens))
        return max(found, key=lambda each: (each.n_tokens, each.source.types.bits), default=None)

    def _listed(self) -> tuple[_Source, ...]:
        if self._sources is None:
            self._sources = tuple(self._read_sources())
        return self._sources

    def _read_sources(self) -> list[_Source]:
        sources = []
        for namespace in self._folder.namespaces():
            types = CacheTypes.of(namespace)
            if types is None or not differ_in_types_only(namespace, self._namespace):
                continue
            catalog = Catalog(namespace.key, can_slice=self._backend.can_slice)
            adopt(catalog, [entry.state for entry in self._folder.entries(namespace.key)])
            sources.append(_Source(namespace, types, catalog))
        return sources

    def _put(
        self, tiers: PrefixCache, tokens: Sequence[int], owner: str, found: _Found
    ) -> Requantised | None:
        assert self._into is not None
        watch, n_done, worst = Stopwatch(), 0, found.source.types
        with tiers.match(tokens) as match:
            n_own = match.n_tokens if self._backend.can_slice else 0
            for node in found.nodes:
                end = min(node.end, found.n_tokens)
                if end <= n_own:
                    continue
                start, state = self._read(found.source, node, end)
                origin = self._origin(found.source, node)
                share = (end - start) / (node.end - found.source.catalog.start(node))
                if not tiers.put(
                    tokens[:end],
                    start,
                    state,
                    recompute_s=value(node).recompute_s * share,
                    owner=owner,
                    origin=origin.spelled,
                ):
                    break
                worst = worst.coarsest(origin)
                n_done += end - max(start, n_own)
        if not n_done:
            return None
        return Requantised(worst, self._into, n_done, watch.total())

    def _read(self, source: _Source, node: KeptNode, end: int) -> tuple[int, Payload]:
        """A node's state up to a token of its line in the types of the context, and its start."""
        file, types = value(node).file, source.types
        assert file is not None
        state: Payload = self._folder.read(source.namespace.key, file)
        state = self._backend.requantise(state, types.k, types.v)
        start, split = source.catalog.start(node), self._backend.split_state
        return start, part_of(state, (file.start, file.end), (start, end), split)

    def _origin(self, source: _Source, node: KeptNode) -> CacheTypes:
        before = CacheTypes.read(value(node).origin)
        return source.types if before is None else source.types.coarsest(before)

    def _complain(self, tiers: PrefixCache, reason: str) -> None:
        """Say once why a chat is read again."""
        if not self._has_complained:
            self._has_complained = True
            tiers.note(
                f"The chat is read again, for what is kept of it in another cache type cannot be "
                f"requantised: {reason}",
                is_problem=True,
            )
