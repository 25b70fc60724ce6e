"""A graph of tensors as ggml holds it: what each is made of, and the order of computing.

`ggml_build_forward_expand` of `ggml/src/ggml.c` (llama.cpp 0c1e57098). Sizes are names, so that one
graph serves every context of a model.
"""

from dataclasses import dataclass, field
from enum import Enum, auto

Size = tuple[int, str]
"""Whose tensor it is (a layer by its number, or one of the numbers below zero), and which."""


class Kind(Enum):
    """Where the data of a tensor are."""

    COMPUTED = auto()
    VIEW = auto()
    """In another tensor."""
    INPUT = auto()
    """Written by the program before the graph runs."""
    WEIGHT = auto()
    CACHE = auto()


@dataclass(slots=True, eq=False)
class Tensor:
    """One tensor; `size` is None where it takes no room of its own."""

    size: Size | None
    sources: tuple["Tensor", ...] = ()
    kind: Kind = Kind.COMPUTED
    device: int | None = None
    """The device that computes or holds it; None where the scheduler chooses."""
    replaces: tuple["Tensor", ...] = ()
    """Sources of the same layout: it takes the room of the first that nobody else needs."""
    gpu_size: Size | None = None
    """Its size on a GPU, where a kernel keeps more there."""
    is_cpu_only: bool = False
    """Whether no GPU has a kernel for it."""
    is_kept: bool = False
    """Whether its room is never given to others."""


@dataclass(slots=True)
class TensorGraph:
    """Tensors in the order in which they are computed."""

    nodes: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    _known: set[Tensor] = field(default_factory=set)

    def expand(self, tensor: Tensor) -> Tensor:
        """Add a tensor behind all that it is made of, sources from first to last."""
        if tensor in self._known:
            return tensor
        self._known.add(tensor)
        path = [(tensor, iter(tensor.sources))]
        while path:
            node, sources = path[-1]
            source = next((source for source in sources if source not in self._known), None)
            if source is not None:
                self._known.add(source)
                path.append((source, iter(source.sources)))
                continue
            path.pop()
            if node.kind is Kind.INPUT:
                self.inputs.append(node)
            elif node.kind in (Kind.COMPUTED, Kind.VIEW):
                self.nodes.append(node)
        return tensor
