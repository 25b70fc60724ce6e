"""Named tensors as bytes in safetensors format, which executes nothing and checks each size."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from engine.errors import StateError

State = bytes | memoryview

LENGTH = "length"
DAMAGES = (
    SafetensorError, AssertionError, AttributeError, KeyError, OverflowError, RuntimeError,
    TypeError, ValueError,
)  # fmt: skip
"""Errors of safetensors 0.8 and torch for damaged bytes."""


def write_tensors(tensors: Mapping[str, Tensor], length: int) -> bytes:
    """Serialise tensors and their number of tokens."""
    whole = {name: each.detach().cpu().contiguous() for name, each in tensors.items()}
    saved: bytes = save(whole | {LENGTH: torch.tensor(length)})
    return saved


def read_tensors(saved: State) -> tuple[dict[str, Tensor], int]:
    """Parse the tensors and the number of tokens that `write_tensors` serialised.

    Raises:
        StateError: the bytes are damaged or have another format.
    """
    try:
        found: dict[str, Tensor] = load(bytes(saved))
        length = int(found.pop(LENGTH).item())
    except DAMAGES as error:
        raise StateError("the saved state is damaged or has another format") from error
    if length < 0:
        raise StateError("the saved state is damaged")
    return found, length


def fill(held: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into tensors with the same names, types and shapes.

    Raises:
        StateError: they differ; nothing was copied.
    """
    if found.keys() != held.keys():
        raise StateError(
            f"the saved state contains the tensors {', '.join(sorted(found))}, but this cache "
            f"needs {', '.join(sorted(held))}"
        )
    for name, tensor in held.items():
        saved = found[name]
        if tensor.dtype != saved.dtype or tensor.shape != saved.shape:
            raise StateError(
                f"the saved state has shape {list(saved.shape)} ({saved.dtype}), but the cache "
                f"has {list(tensor.shape)} ({tensor.dtype}): the state belongs to another "
                "model or cache type"
            )
    for name, tensor in held.items():
        tensor.copy_(found[name])
