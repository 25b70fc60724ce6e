"""The identity of a model file, independent of its name, and its kind."""

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from engine.configuration import Adapter
from engine.errors import IncompatiblePairError, ModelFileError
from engine.files import exists, open_file, reason_of
from engine.model.architectures import family_of
from engine.model.gguf import GgufFile, read_gguf

BLOCK_BYTES = 64 << 10
N_DATA_BLOCKS = 8
N_VOCABULARY_BLOCKS = 4
TABLE_BYTES = 512 << 10  # the end of a header, with the tensor table: 5,000 tensors


class ModelKind(StrEnum):
    """Kinds of GGUF files."""

    MODEL = "model"
    EMBEDDING = "embedding"  # turns texts into vectors, or ranks them
    DRAFT = "draft"  # drafts for one other model only
    PROJECTOR = "projector"  # turns images or sounds into embeddings for a model (mmproj)
    ADAPTER = "adapter"  # changes a model: LoRA, or a control vector
    VOCABULARY = "vocabulary"  # has tokens and no weights
    IMATRIX = "imatrix"  # figures of a quantisation


TYPES = {
    "mmproj": ModelKind.PROJECTOR,
    "projector": ModelKind.PROJECTOR,
    "adapter": ModelKind.ADAPTER,
    "draft head": ModelKind.DRAFT,
    "imatrix": ModelKind.IMATRIX,
    "vocab": ModelKind.VOCABULARY,
}
"""Kinds by `general.type` and by architecture."""
SPEC_TYPES = {"eagle3": "draft-eagle3", "dflash": "draft-dflash"}
"""`--spec-type` of llama-server (llama.cpp 0c1e57098) by architecture; otherwise `draft-mtp`."""


def model_identity(path: Path) -> str:
    """The identity of a model file, the same for every copy: 32 hexadecimal digits.

    It is the BLAKE2b digest of size, the header's first block and its end with the tensor table,
    blocks of the vocabulary, and blocks of the data at fixed shares of the file, of every part of
    a split model. Raises `ModelFileError` if the file cannot be read.
    """
    return identity_of(read_gguf(path))


def identity_of(file: GgufFile) -> str:
    """The identity of a model whose header was read; as `model_identity`."""
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
            raise ModelFileError(f"{path} cannot be read: {reason_of(error)}") from error
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


def is_projector_name(name: str) -> bool:
    """Whether a file has the usual name of a projector."""
    return "mmproj" in name.lower()


def not_a_file(path: Path) -> str:
    """Why a path is no file, as the end of a sentence."""
    if not exists(path):
        return "does not exist: check the path, or see `kvchat models`"
    if path.is_dir():
        return "is a folder: specify a GGUF file in it"
    return "is a pipe or a device: specify a GGUF file"


def check_adapter(file: GgufFile, model: GgufFile) -> None:
    """Raise `ModelFileError` for an adapter that is empty or of another architecture."""
    name = file.path.name
    if not file.tensors:
        raise ModelFileError(f"the adapter {name} has no tensors and would change nothing")
    if file.architecture != model.architecture:
        raise ModelFileError(
            f"the adapter {name} has the architecture {file.architecture}, but "
            f"{model.path.name} has {model.architecture}: choose an adapter for this model"
        )


def check_is_no_head(path: Path) -> None:
    """Refuse a draft head (EAGLE-3, DFlash, a separate file of an MTP head) as draft model.

    Raises:
        IncompatiblePairError: it is a draft head.
        ModelFileError: the file cannot be read.
    """
    file = read_gguf(path)
    if kind_of(file) is not ModelKind.DRAFT:
        return
    name = file.architecture
    raise IncompatiblePairError(
        f"{path.name} is a draft head ({name}), not a complete model: it needs hidden "
        "states of its target, which kvchat cannot pass to it. Use a small model of the "
        "same vocabulary, or n-gram lookup; llama-server runs the head with `--model-draft "
        f"{path.name} --spec-type {SPEC_TYPES.get(name, 'draft-mtp')}`"
    )


def adapters_in_words(adapters: Sequence[Adapter], hash_file: Callable[[Path], str]) -> str:
    """The adapters as text: the hash of each, and its scale unless it is 1."""
    texts = (
        hash_file(each.path) + ("" if each.scale == 1.0 else f" at {each.scale!r}")
        for each in adapters
        if each.scale
    )
    return " ".join(texts) or "none"


def kind_of(file: GgufFile) -> ModelKind:
    """The kind of a file, by its header."""
    name, family = file.architecture, family_of(file.architecture)
    kind = TYPES.get(file.text("general.type") or "") or TYPES.get(family.not_alone)
    if kind is not None:
        return kind
    if "adapter.type" in file.values:
        return ModelKind.ADAPTER
    n_mtp = file.integer(f"{name}.nextn_predict_layers") or 0
    if 0 < (file.integer(f"{name}.block_count") or 0) <= n_mtp:
        return ModelKind.DRAFT
    if not file.tensors and "tokenizer.ggml.tokens" in file.array_lengths:
        return ModelKind.VOCABULARY
    is_causal = file.values.get(f"{name}.attention.causal", not family.gives_vectors)
    is_diffusion = not family.has_cache and not family.gives_vectors
    pools = (file.integer(f"{name}.pooling_type") or 0) > 0
    gives_vectors = pools or (is_causal is False and not is_diffusion)
    return ModelKind.EMBEDDING if gives_vectors else ModelKind.MODEL
