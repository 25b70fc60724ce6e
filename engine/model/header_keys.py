"""The keys of one architecture in a GGUF header, with llama.cpp's defaults."""

from engine.errors import ModelFileError
from engine.model.gguf import GgufFile

MAX_LAYERS = 10_000
"""More than llama.cpp takes (512) by far, and few enough to count."""
MAX_VALUE = 2**40
"""Larger lengths are damage: no product of two of them can be a memory size."""


class HeaderKeys:
    """Reads `{architecture}.{key}`."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.name = file.architecture

    def has(self, key: str) -> bool:
        """Whether the header holds the key."""
        return f"{self.name}.{key}" in self.file.values

    def optional(self, key: str, default: int) -> int:
        """Give a number, or the default where there is none; never below zero.

        Raises:
            ModelFileError: the number is too large to be true.
        """
        value = self.file.integer(f"{self.name}.{key}")
        if value is not None and value > MAX_VALUE:
            raise ModelFileError(
                f"{self.file.path.name} has {self.name}.{key} = {value}: the header is damaged"
            )
        return default if value is None else max(0, value)

    def needed(self, key: str) -> int:
        """Give a number above zero.

        Raises:
            ModelFileError: it is missing, or not a number above zero.
        """
        value = self.file.integer(f"{self.name}.{key}")
        if value is None or not 0 < value <= MAX_VALUE:
            raise ModelFileError(
                f"{self.file.path.name} has no usable {self.name}.{key} (found {value}): "
                "the header is incomplete, or this is no language model"
            )
        return value

    def n_blocks(self) -> int:
        """Give the number of blocks, those of a next-token head among them."""
        n_blocks = self.needed("block_count")
        if n_blocks > MAX_LAYERS:
            raise ModelFileError(
                f"{self.file.path.name} claims {n_blocks} layers; at most {MAX_LAYERS} are believed"
            )
        return n_blocks

    def per_layer(self, key: str, n_layers: int, default: list[int] | None = None) -> list[int]:
        """Give a scalar or per-layer key for each layer; without a default it is needed.

        Raises:
            ModelFileError: it is missing, or has too few values.
        """
        array = self.file.integers(f"{self.name}.{key}")
        if array is not None:
            if len(array) < n_layers or any(not 0 <= value <= MAX_VALUE for value in array):
                raise ModelFileError(
                    f"{self.file.path.name} has {len(array)} values of {self.name}.{key} for "
                    f"{n_layers} layers, or impossible ones: the header is damaged"
                )
            return list(array[:n_layers])
        if default is None:
            return [self.needed(key)] * n_layers
        return [self.optional(key, -1)] * n_layers if self.has(key) else default

    def flags(self, key: str, n_layers: int) -> list[bool] | None:
        """Give a per-layer array of flags; None where the key is no array of enough values."""
        array = self.file.integers(f"{self.name}.{key}")
        if array is None or len(array) < n_layers:
            return None
        return [bool(flag) for flag in array[:n_layers]]
