"""Weights of a GGUF file: mapped, and dequantised one tensor at a time."""

from math import prod

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import ModelLoadError
from engine.model.ggml import TYPE_NUMBERS
from engine.model.gguf import GgufFile, TensorInfo, read_part

BLOCKS_AT_ONCE = 1 << 14
"""Blocks that are dequantised together, so that intermediate values stay in a core's cache."""


class TensorReader:
    """Reads the tensors of a model by name to a device, matrices as `dtype`, without caching."""

    def __init__(self, file: GgufFile, *, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._name = file.path.name
        self._found: dict[str, tuple[TensorInfo, NDArray[np.uint8]]] = {}
        for path in file.paths:
            part, mapped = read_part(path), np.memmap(path, np.uint8, mode="r")
            for info in part.tensors:
                start = part.data_start + info.offset
                self._found[info.name] = info, mapped[start : start + info.nbytes]

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def read(self, name: str, *, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor in torch's order: matrices are `[outputs, inputs]`.

        Raises:
            ModelLoadError: it is missing, or of a type that cannot be dequantised.
        """
        if name not in self._found:
            raise ModelLoadError(
                f"{self._name} has no tensor {name}: the file is incomplete, or its header "
                "specifies another architecture"
            )
        info, raw = self._found[name]
        values = self._dequantised(info, raw, dtype or self._dtype)
        return values.reshape(info.shape[::-1]).to(self._device)

    def optional(self, name: str) -> Tensor | None:
        """Read a tensor; None if the file does not have it."""
        return self.read(name) if name in self else None

    def _dequantised(self, info: TensorInfo, raw: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
        """Dequantise in chunks, so that there is no whole copy in another type."""
        ggml_type = info.type
        values = torch.empty(prod(info.shape), dtype=dtype)
        number = GGMLQuantizationType(TYPE_NUMBERS[ggml_type.name])
        n_bytes = BLOCKS_AT_ONCE * ggml_type.block_bytes
        size = BLOCKS_AT_ONCE * ggml_type.block_size
        try:
            for index, start in enumerate(range(0, len(raw), n_bytes)):
                chunk = raw[start : start + n_bytes].reshape(1, -1)
                read = np.array(dequantize(chunk, number), np.float32).reshape(-1)
                values[index * size : (index + 1) * size] = torch.from_numpy(read)
        except NotImplementedError as error:
            raise ModelLoadError(
                f"{self._name} has tensors of the type {ggml_type.name}, which the torch backend "
                "cannot read: use the llama.cpp backend, or another quantisation"
            ) from error
        return values
