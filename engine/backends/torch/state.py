"""Saved states of sequences: the tensors of each layer's cache as safetensors."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.backends.torch.caches.dense import KEYS, VALUES
from engine.backends.torch.caches.saved import State, read_tensors, write_tensors
from engine.errors import StateError

FORMAT = "torch state 2"
START = "start"
Layer = Mapping[str, Tensor]
"""The tensors of a cache by their names."""


@dataclass(frozen=True, slots=True)
class SavedTokens:
    """Consecutive tokens of a line."""

    start: int
    """Place of the first one in the line."""
    n_tokens: int
    layers: Sequence[Layer]

    def to_bytes(self) -> bytes:
        """The state that `read_state` reads; names begin with the number of their layer."""
        tensors = {
            f"{number}.{name}": tensor
            for number, layer in enumerate(self.layers)
            for name, tensor in layer.items()
        }
        return write_tensors(tensors | {START: torch.tensor(self.start)}, self.n_tokens)

    def since(self, start: int) -> "SavedTokens":
        """The state of the tokens from `start` on.

        Raises:
            StateError: the caches cannot be split.
        """
        layers = [
            {name: rows[:, :, start:] for name, rows in _rows(layer, self.n_tokens).items()}
            for layer in self.layers
        ]
        return SavedTokens(self.start + start, self.n_tokens - start, layers)


def read_state(state: State) -> SavedTokens:
    """Parse a state.

    Raises:
        StateError: it is damaged, or not of the torch backend.
    """
    tensors, n_tokens = read_tensors(state)
    layers: dict[int, dict[str, Tensor]] = defaultdict(dict)
    try:
        start = int(tensors.pop(START).item())
        for name, tensor in tensors.items():
            number, _, rest = name.partition(".")
            layers[int(number)][rest] = tensor
    except (KeyError, ValueError, RuntimeError) as error:
        raise StateError("the saved state is damaged, or was saved by another backend") from error
    if sorted(layers) != list(range(len(layers))):
        raise StateError("the saved state is damaged: layers are missing")
    return SavedTokens(start, n_tokens, [layers[number] for number in range(len(layers))])


def join(states: Sequence[State], n_tokens: int) -> Sequence[Layer]:
    """Join the tensors of consecutive states that start at position 0.

    Raises:
        StateError: the states are not consecutive, or have another number of tokens.
    """
    parts = [read_state(state) for state in states]
    end = 0
    for part in parts:
        if part.start != end or len(part.layers) != len(parts[0].layers):
            raise StateError(
                f"a saved state begins at token {part.start}, but only {end} tokens were "
                "restored before it"
            )
        end += part.n_tokens
    if end != n_tokens or not parts:
        raise StateError(f"the saved states contain {end} tokens, but {n_tokens} were expected")
    if len(parts) == 1:
        return parts[0].layers
    sizes = [part.n_tokens for part in parts]
    return [_joined(layer, sizes) for layer in zip(*(part.layers for part in parts), strict=True)]


def _joined(layers: Sequence[Layer], sizes: Sequence[int]) -> Layer:
    pieces = [_rows(layer, size) for layer, size in zip(layers, sizes, strict=True)]
    joined = {}
    for name in (KEYS, VALUES):
        rows = [piece[name] for piece in pieces]
        if len({(each.dtype, each.shape[:2], each.shape[3:]) for each in rows}) > 1:
            raise StateError("the saved states belong to different models or cache types")
        joined[name] = torch.cat(rows, dim=2)
    return joined


def _rows(layer: Layer, n_tokens: int) -> Layer:
    """A layer's tensors `[.., .., n_tokens, ..]` if its cache is dense."""
    is_dense = layer.keys() == {KEYS, VALUES}
    if not is_dense or any(each.dim() != 4 or each.shape[2] != n_tokens for each in layer.values()):
        raise StateError(
            f"the saved state is damaged: a layer does not contain all {n_tokens} tokens"
        )
    return layer
