"""Weights of a GGUF file: mapped, and dequantised one tensor at a time."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from engine.errors import ModelLoadError
from engine.model.ggml import TYPE_NUMBERS
from engine.model.gguf import GgufFile, TensorInfo, read_part

BLOCKS_AT_ONCE = 1 << 14
"""Blocks that are dequantised together, so that intermediate values stay in a core's cache."""

Progress = Callable[[int, int], None]
"""Called with the bytes read so far and the total."""


@dataclass(frozen=True, slots=True)
class _Place:
    """File and byte offset of a tensor."""

    info: TensorInfo
    path: Path
    offset: int


class TensorReader:
    """Reads the tensors of a model by name, without caching.

    Args:
        file: The model.
        dtype: Type of the matrices.
        device: Target device.
        progress: Called after each tensor.
    """

    def __init__(
        self,
        file: GgufFile,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._name = file.path.name
        self._places = _places(file)
        self._maps = {path: np.memmap(path, np.uint8, mode="r") for path in file.paths}
        self._progress = progress
        self._n_read = 0
        self._n_bytes = sum(place.info.nbytes for place in self._places.values())

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor in torch's order: matrices are `[outputs, inputs]`.

        Raises:
            ModelLoadError: it is missing, or of a type that cannot be dequantised.
        """
        place = self._places.get(name)
        if place is None:
            raise ModelLoadError(
                f"{self._name} has no tensor {name}: the file is incomplete, or its header "
                "specifies another architecture"
            )
        values = self._dequantised(place, dtype or self.dtype)
        read = values.reshape(place.info.shape[::-1]).to(self.device)
        self._n_read += place.info.nbytes
        if self._progress is not None:
            self._progress(self._n_read, self._n_bytes)
        return read

    def optional(self, name: str) -> Tensor | None:
        """Read a tensor; None if the file does not have it."""
        return self.read(name) if name in self else None

    def _dequantised(self, place: _Place, dtype: torch.dtype) -> Tensor:
        """The numbers of a tensor; no second copy of it is held in another type meanwhile."""
        kind, n_elements = place.info.type, prod(place.info.shape)
        raw = self._maps[place.path][place.offset : place.offset + place.info.nbytes]
        values = torch.empty(n_elements, dtype=dtype)
        number = GGMLQuantizationType(TYPE_NUMBERS[kind.name])
        step_bytes, step = BLOCKS_AT_ONCE * kind.block_bytes, BLOCKS_AT_ONCE * kind.block_size
        try:
            for index, start in enumerate(range(0, len(raw), step_bytes)):
                part = raw[start : start + step_bytes].reshape(1, -1)
                read = np.array(dequantize(part, number), np.float32).reshape(-1)
                values[index * step : (index + 1) * step] = torch.from_numpy(read)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self._name} has tensors of the type {kind.name}, which the torch backend "
                "cannot read: use the llama.cpp backend, or another quantisation"
            ) from error
        return values


def _places(file: GgufFile) -> dict[str, _Place]:
    places = {}
    for path in file.paths:
        part = read_part(path)
        for info in part.tensors:
            places[info.name] = _Place(info, path, part.data_start + info.offset)
    return places
