"""Tensors of a graph for a placement: what each takes, whose size it has, which device its weight.

Names of sizes and inputs are those of `layer_tensors.py`; names of weights those of a file, without
their layer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from engine.memory.layer_kinds import LayerKind
from engine.memory.scheduler import Kind, Size, Tensor, TensorGraph

INPUTS, ROWS = -1, -2
"""Whose sizes: inputs of the graph, and tensors of the few rows that give logits."""
PREFIX = "weight "


@dataclass(frozen=True, slots=True)
class PlacedLayer:
    """One layer, and the devices of its weights and of its cache."""

    kind: LayerKind
    weights: frozenset[str]
    """Their names without the layer's."""
    device: int
    cache_device: int
    moved: tuple[tuple[str, int], ...] = ()
    """Weights that lie on another device."""


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """Layers of a model on devices by number, the CPU last."""

    layers: tuple[PlacedLayer, ...]
    beside: PlacedLayer
    """Weights of the input and, on its device, of the output."""
    n_devices: int
    visited: int = 0
    """The device that weights of main memory visit."""
    offloads: bool = False
    """Whether they do."""
    offloads_rows: bool = False
    """Whether they do for the rows that give logits."""
    sources: tuple[int, ...] = ()
    """Which layers have the same weights: those of one number."""
    cuts_rows: bool = True
    """Whether the last layer goes on with few rows behind its attention."""
    norms_all: bool = False
    """Whether all rows are normed before those that give logits are taken."""
    has_rows: bool = True
    """Whether few rows give logits, and not all."""
    attends_on_cpu: bool = False
    """Whether no GPU has a kernel for attention."""
    scans_on_cpu: bool = False
    """Whether no GPU has a kernel for the scan of a state."""
    has_image_rows: bool = False
    """Whether features of an image come beside the embeddings (DeepStack)."""
    norms_stay: bool = False
    """Whether the norm before a layer is computed where that layer lies (`graph_get_cb`)."""


class GraphBuilder:
    """Makes the tensors of one layer after the other."""

    def __init__(self, model: PlacedModel) -> None:
        self.model = model
        self.graph = TensorGraph()
        self.expand = self.graph.expand
        self.cpu = model.n_devices - 1
        self._inputs: dict[str, Tensor] = {}
        self._weights: dict[tuple[int, str], Tensor] = {}
        self.rotating: dict[int, Tensor] = {}
        self.shared: dict[str, Tensor] = {}
        """What layers hand to all behind them."""
        self.index = INPUTS
        """The layer that is built."""
        self.owner = 0
        """Whose sizes tensors have: the layer's, or those of few rows."""

    def begin_layer(self, index: int) -> None:
        """Make tensors of a layer from here on."""
        self.index = self.owner = index

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Take weights that belong to no layer."""
        index, self.index = self.index, INPUTS
        yield
        self.index = index

    @property
    def here(self) -> PlacedLayer:
        return self.model.beside if self.index == INPUTS else self.model.layers[self.index]

    def input(self, name: str) -> Tensor:
        if name not in self._inputs:
            self._inputs[name] = Tensor((INPUTS, name), kind=Kind.INPUT, device=self.cpu)
        return self._inputs[name]

    def part(self, name: str) -> Tensor:
        """A part of the rows of states, the same tensor for all layers."""
        if name not in self._inputs:
            rows = (self.input("all state rows"),)
            self._inputs[name] = Tensor((INPUTS, name), rows, Kind.VIEW)
        return self._inputs[name]

    def weight(self, name: str) -> Tensor:
        here, index = self.here, self.index
        key = (index if index == INPUTS else self.model.sources[index], name)
        if key not in self._weights:
            device = dict(here.moved).get(name, here.device)
            size = index, PREFIX + name
            self._weights[key] = Tensor(size, kind=Kind.WEIGHT, device=device)
        return self._weights[key]

    def has(self, name: str) -> bool:
        return name in self.here.weights

    def size(self, name: str) -> Size:
        """All layers have hidden states of one size."""
        is_common = name == "hidden" and self.owner != ROWS
        return (0 if is_common else self.owner), name

    def new(self, name: str, *sources: Tensor) -> Tensor:
        return Tensor(self.size(name), sources)

    def same(self, tensor: Tensor, *others: Tensor) -> Tensor:
        """A tensor of the same layout: it may take the room of those it is made of."""
        sources = (tensor, *others)
        taken = [s for s in sources if s.kind is Kind.COMPUTED and s.size == tensor.size]
        return Tensor(tensor.size, sources, replaces=tuple(taken))

    def view(self, tensor: Tensor, name: str = "") -> Tensor:
        """The same data in another shape, or a part of each row."""
        if tensor.kind is Kind.VIEW:
            return tensor
        size = self.size(name) if name else tensor.size
        return Tensor(size, (tensor,), kind=Kind.VIEW)

    def with_weight(self, node: Tensor, weight: Tensor) -> Tensor:
        """A node whose device follows its weight: with many rows it is computed on a GPU."""
        node.device = weight.device
        is_large = self.model.offloads_rows if self.owner == ROWS else self.model.offloads
        if weight.device == self.cpu and is_large:
            node.device = self.model.visited
        return node

    def product(self, name: str, weight: str, *sources: Tensor) -> Tensor:
        """A matrix times its input; a bias is added in place."""
        matrix = self.weight(f"{weight}.weight")
        return self.biased(self.with_weight(self.new(name, matrix, *sources), matrix), weight)

    def scaled(self, tensor: Tensor, weight: str, suffix: str = ".weight") -> Tensor:
        """A tensor times a vector of the layer, or with it added."""
        vector = self.weight(weight + suffix)
        return self.with_weight(self.same(tensor, vector), vector)

    def biased(self, tensor: Tensor, weight: str) -> Tensor:
        if not self.has(f"{weight}.bias"):
            return tensor
        return self.scaled(tensor, weight, ".bias")

    def norm(self, tensor: Tensor, weight: str, name: str = "") -> Tensor:
        """A norm, times its weight where it has one."""
        tensor = self.same(tensor)
        tensor.size = self.size(name) if name else tensor.size
        if not self.has(f"{weight}.weight"):
            return tensor
        if self.index != INPUTS and self.model.norms_stay:
            tensor.device = self.here.device
        return self.biased(self.scaled(tensor, weight), weight)

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows that give logits."""
        self.owner = ROWS
        return self.new("hidden", tensor, self.input("rows"))
