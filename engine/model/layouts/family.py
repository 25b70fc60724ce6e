"""What a family of architectures says: its tensors outside the layers, and those of each layer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.model.layouts.blocks import (
    EMBEDDING,
    OUTPUT,
    OUTPUT_NORM,
    ROPE_FREQS,
    ROPE_LONG_SHORT,
)
from engine.model.layouts.keys import Keys
from engine.model.layouts.rows import Rows, Shape, shapes

Sizes = dict[str, int]


def standard_sizes(keys: Keys, layer: int) -> Sizes:
    """Give the sizes that nearly every architecture has."""
    return keys.sizes(layer)


@dataclass(frozen=True, slots=True)
class Family:
    """Rules of one architecture."""

    layer: Callable[[Keys, int], Rows]
    """Rows of a layer, by its index."""
    extra: Rows | Callable[[Keys], Rows] = ()
    """Rows outside the layers, besides embedding, output norm and output."""
    sizes: Callable[[Keys, int], Sizes] = standard_sizes
    has_output_norm: bool = True

    def tensors(self, keys: Keys) -> Iterator[Shape]:
        """Give name and shape of every tensor of a model."""
        yield from shapes(self._outside(keys), self.sizes(keys, 0))
        for index in range(keys.n_layers):
            yield from shapes(self.layer(keys, index), self.sizes(keys, index), f"blk.{index}.")

    def _outside(self, keys: Keys) -> Rows:
        extra = self.extra(keys) if callable(self.extra) else self.extra
        outside = EMBEDDING + (OUTPUT_NORM if self.has_output_norm else ()) + extra
        if "rope_freqs" in keys.traits:
            outside += ROPE_FREQS
        if "rope_long_short" in keys.traits:
            outside += ROPE_LONG_SHORT
        return outside if "tied" in keys.traits else outside + OUTPUT


def same_in_every_layer(*blocks: Rows) -> Callable[[Keys, int], Rows]:
    """Give the rule of a model whose layers are alike."""
    joined = tuple(row for block in blocks for row in block)
    return lambda _keys, _index: joined
