"""Which model a file holds, whatever it is called: never by reading all of it."""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

from engine.errors import ModelFileError
from engine.files import open_file
from engine.model.gguf import GgufFile, read_gguf

BLOCK_BYTES = 64 << 10
N_DATA_BLOCKS = 8
N_VOCABULARY_BLOCKS = 4
TABLE_BYTES = 512 << 10
"""Of the header's end, where the tensor table is: 5,000 tensors."""


def model_identity(path: Path) -> str:
    """Give what tells the model of a file from all others: 32 hexadecimal digits.

    It is the BLAKE2b digest of size, the header's first block and its end with the tensor table,
    blocks of the vocabulary, and blocks of the data at fixed shares of the file, of every part of a
    split model. A copy, a moved and a renamed file have the same.

    Raises:
        ModelFileError: the file cannot be read.
    """
    return identity_of(read_gguf(path))


def identity_of(file: GgufFile) -> str:
    """Give the identity of a model whose header was read; as `model_identity`."""
    digest = hashlib.blake2b(digest_size=16)
    for path, header_bytes in zip(file.paths, file.header_sizes, strict=True):
        try:
            with open_file(path) as part:
                nbytes = path.stat().st_size
                digest.update(struct.pack("<QQ", nbytes, header_bytes))
                for start, stop in _blocks(nbytes, header_bytes):
                    part.seek(start)
                    digest.update(part.read(stop - start))
        except OSError as error:
            raise ModelFileError(f"{path} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


def _blocks(nbytes: int, header_bytes: int) -> Iterator[tuple[int, int]]:
    for index in range(N_VOCABULARY_BLOCKS):
        start = header_bytes * index // N_VOCABULARY_BLOCKS
        yield start, min(start + BLOCK_BYTES, header_bytes)
    yield max(0, header_bytes - TABLE_BYTES), header_bytes
    for index in range(N_DATA_BLOCKS):
        span = max(0, nbytes - header_bytes - BLOCK_BYTES)
        start = header_bytes + span * index // (N_DATA_BLOCKS - 1)
        yield start, min(start + BLOCK_BYTES, nbytes)
